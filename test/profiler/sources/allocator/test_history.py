"""Following the allocator's history: sizes of blocks, pools, the peak, what is not understood."""

from __future__ import annotations

from typing import Any

import pytest

from memprof.profiler.model.allocator_rules import SMALL
from memprof.profiler.sources.allocator.history import AllocatorHistory
from memprof.profiler.sources.allocator.marks import Mark, Phase

MIB = 1 << 20


class History:
    """Events as the allocator would write them, one segment after another."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def add(self, action: str, addr: int, size: int, **more: Any) -> History:
        self.events.append({"action": action, "addr": addr, "size": size, "stream": 0, **more})
        return self

    def freed(self, addr: int, size: int) -> History:
        return self.add("free_requested", addr, size).add("free_completed", addr, size)


def marks(*counts: tuple[int, int]) -> list[Mark]:
    """At each of which so many blocks had been asked for, and let go of."""
    return [Mark(Phase.FORWARD, 0, counts={0: both}) for both in counts]


def followed(history: History, **settings: Any) -> AllocatorHistory:
    replay = AllocatorHistory(settings)
    replay.feed(history.events)
    return replay


@pytest.mark.parametrize(
    ("segment", "requested", "size"),
    [
        (2 * MIB, 1, 512),
        (2 * MIB, 513, 1024),
        (2 * MIB, SMALL, SMALL),
        (20 * MIB, SMALL + 1, SMALL + 512),  # cut: more than a MiB remains
        (20 * MIB, 19 * MIB, 20 * MIB),  # not cut: what remains is of no use
        (20 * MIB, 19 * MIB - 1, 20 * MIB),
        (20 * MIB, 19 * MIB - 512, 19 * MIB - 512),
        (2 * MIB, 2 * MIB, 2 * MIB),
    ],
)
def test_block_sizes(segment: int, requested: int, size: int) -> None:
    replay = followed(History().add("segment_alloc", 0, segment).add("alloc", 0, requested))
    assert [b.size for b in replay.live] == [size]
    assert replay.allocated_bytes == size
    assert replay.reserved == segment


def test_expandable_segments_grow_and_are_cut_closely() -> None:
    history = (
        History()
        .add("segment_map", 0, 20 * MIB)
        .add("alloc", 0, 19 * MIB + 512)
        .add("segment_map", 20 * MIB, 20 * MIB)
        .add("alloc", 19 * MIB + 512, 20 * MIB)
        .freed(0, 19 * MIB + 512)
        .add("segment_unmap", 0, 18 * MIB)
    )
    replay = followed(history)
    assert [(b.address, b.size) for b in replay.live] == [(19 * MIB + 512, 20 * MIB)]
    assert replay.reserved == 22 * MIB


def test_max_split_size_keeps_large_blocks_whole() -> None:
    history = History().add("segment_alloc", 0, 40 * MIB).add("alloc", 0, 30 * MIB)
    assert followed(history).allocated_bytes == 30 * MIB
    assert followed(history, max_split_size=30 * MIB).allocated_bytes == 40 * MIB


def test_the_instant_kept_is_the_fullest_of_those_with_most_reserved() -> None:
    history = (
        History()
        .add("segment_alloc", 0, 20 * MIB)
        .add("alloc", 0, 10 * MIB)
        .freed(0, 10 * MIB)
        .add("alloc", 0, 12 * MIB)
        .add("alloc", 12 * MIB, 2 * MIB)
        .add("free_requested", 0, 12 * MIB)
        .add("alloc", 14 * MIB, 2 * MIB)
    )
    peak = followed(history).peak
    assert (peak.reserved, peak.allocated) == (20 * MIB, 14 * MIB)
    assert sorted((b.address, b.size) for b in peak.blocks) == [
        (0, 12 * MIB),
        (12 * MIB, 2 * MIB),
    ]
    assert not peak.awaiting


def test_a_block_that_a_stream_still_uses_is_awaiting() -> None:
    history = (
        History()
        .add("segment_alloc", 0, 20 * MIB)
        .add("alloc", 0, 2 * MIB)
        .add("free_requested", 0, 2 * MIB)
        .add("segment_alloc", 32 * MIB, 40 * MIB)
        .add("alloc", 32 * MIB, 40 * MIB)
    )
    peak = followed(history).peak
    assert peak.reserved == 60 * MIB
    assert peak.awaiting == {0}


def test_what_contradicts_does_not_stop() -> None:
    history = (
        History()
        .freed(512, 512)
        .add("alloc", 7 * MIB, 1024)
        .add("segment_free", 9 * MIB, 2 * MIB)
        .add("segment_alloc", 0, 2 * MIB)
        .add("alloc", 0, 100)
    )
    replay = followed(history)
    assert replay.reserved == 2 * MIB
    assert {b.address: b.size for b in replay.live} == {7 * MIB: 1024, 0: 512}


def test_failed_requests_are_kept_with_their_program() -> None:
    frames = [{"filename": "train.py", "line": 3, "name": "main"}]
    replay = followed(History().add("oom", 0, 5 * MIB, frames=frames))
    assert replay.out_of_memory == [(5 * MIB, frames)]


def test_marks_lie_between_the_right_events() -> None:
    history = (
        History()
        .add("segment_alloc", 0, 20 * MIB)
        .add("alloc", 0, 2 * MIB)  # before the first mark, at which one was asked for
        .freed(0, 2 * MIB)
        .add("alloc", 0, 2 * MIB)  # after it, and after the second, at which one was let go of
    )
    replay = AllocatorHistory()
    replay.feed(history.events[:2], marks((0, 0)))
    first = next(iter(replay.live))
    replay.feed(history.events[2:], marks((0, 0), (1, 0), (1, 1)))
    (second,) = replay.live
    assert (first.mark, first.freed_after) == (0, 1)
    assert first.ended is not None
    assert second.mark == 2


def segment(address: int, size: int, *blocks: tuple[int, int, str], **more: Any) -> dict[str, Any]:
    """As a snapshot has it: ``(requested, size, state)`` of blocks side by side."""
    found, at = [], address
    for requested, nbytes, state in blocks:
        found.append(
            {"address": at, "requested_size": requested, "size": nbytes, "state": state, **more}
        )
        at += nbytes
    assert at == address + size
    allocated = sum(n for _, n, state in blocks if state == "active_allocated")
    return {"address": address, "total_size": size, "allocated_size": allocated, "blocks": found}


def test_a_history_that_begins_late_goes_on_from_a_snapshot() -> None:
    there = segment(
        0,
        20 * MIB,
        (2 * MIB - 5, 2 * MIB, "active_allocated"),
        (3 * MIB, 3 * MIB, "active_pending_free"),
        (0, 15 * MIB, "inactive"),
    )
    nothing = {"address": 64 * MIB, "total_size": 0, "allocated_size": 0, "blocks": []}
    replay = AllocatorHistory()
    replay.feed((), marks((7, 3), (7, 3)))
    replay.take_over([there, nothing])
    replay.continue_at((7, 3))
    assert replay.agrees([there, nothing])
    # What is there may be the peak
    assert (replay.peak.reserved, replay.peak.allocated) == (20 * MIB, 2 * MIB)
    assert [(b.address, b.event) for b in replay.peak.blocks] == [(0, 0), (2 * MIB, 0)]
    assert replay.peak.awaiting == {2 * MIB}
    # AND goes as any other block; marks are counted from what had been asked for by then
    history = (
        History()
        .add("free_completed", 2 * MIB, 3 * MIB)
        .add("alloc", 2 * MIB, 18 * MIB)
        .freed(0, 2 * MIB - 5)
        .add("alloc", 0, MIB)
    )
    replay.feed(history.events, marks((7, 3), (7, 3), (8, 4)))
    assert sorted((b.address, b.size, b.mark) for b in replay.live) == [
        (0, MIB, 2),
        (2 * MIB, 18 * MIB, 1),
    ]
    assert (replay.peak.reserved, replay.peak.allocated) == (20 * MIB, 20 * MIB)


def test_what_a_snapshot_has_counts_more_than_what_was_followed() -> None:
    history = (
        History()
        .add("segment_alloc", 0, 20 * MIB)
        .add("alloc", 0, 2 * MIB)
        .add("alloc", 2 * MIB, 2 * MIB)
        .add("alloc", 4 * MIB, 2 * MIB)
        .add("free_requested", 4 * MIB, 2 * MIB)
    )
    replay = followed(history)
    kept, lost, again = replay.live
    # WHEN the second block went, and the third was handed out anew, unseen
    now = segment(
        0,
        20 * MIB,
        (2 * MIB, 2 * MIB, "active_allocated"),
        (0, 2 * MIB, "inactive"),
        (2 * MIB, 2 * MIB, "active_allocated"),
        (0, 14 * MIB, "inactive"),
        frames=[{"filename": "a.py", "line": 3, "name": "f"}],
    )
    replay.take_over([now])
    assert replay.agrees([now])
    assert not replay.agrees([segment(0, 2 * MIB, (0, 2 * MIB, "inactive"))])
    first, third = replay.live
    assert first is kept
    assert third is not again
    assert [f.line for f in third.frames] == [3]
    assert (lost.freed_after, lost.ended is None, again.ended is None) == (0, False, False)
    assert replay.peak.allocated == 6 * MIB


def test_marks_are_where_the_allocator_has_counted_them() -> None:
    # GIVEN two blocks that came and went unseen after the first, which changes no sum
    replay = followed(History().add("segment_alloc", 0, 20 * MIB).add("alloc", 0, 2 * MIB))
    replay.continue_at((3, 2))
    later = History().add("alloc", 2 * MIB, 2 * MIB).add("alloc", 4 * MIB, 2 * MIB)
    # THEN what was asked for before the mark is before it, and the next is not
    replay.feed(later.events, marks((0, 0), (4, 2)))
    assert [block.mark for block in replay.live] == [0, 0, 1]


def test_memory_is_given_back_from_within_what_is_free() -> None:
    history = History().add("segment_map", 0, 200 * MIB)
    for i in range(40):
        history.add("segment_unmap", (4 * i + 2) * MIB, MIB)
    replay = followed(history)
    assert replay.reserved == 160 * MIB
    assert len(list(replay.segments)) == 41

"""Segments by address: hostile histories cost no more than their size."""

from __future__ import annotations

import bisect
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.profiler.sources.allocator import segments
from memprof.profiler.sources.allocator.segments import Ascending, Segments
from memprof.profiler.sources.snapshot.reading import decode_snapshot
from memprof.profiler.sources.snapshot.to_model import profile_of

MIB = 1 << 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=120))
def test_ascending_is_a_sorted_list(steps: list[tuple[bool, int]]) -> None:
    before, segments._MOST_IN_PART = segments._MOST_IN_PART, 3
    try:
        found, expected = Ascending(), list[int]()
        for goes, number in steps:
            if goes and expected:
                found.remove(expected.pop(number % len(expected)))
            elif number not in expected:
                found.add(number)
                bisect.insort(expected, number)
            for asked in range(-1, 42):
                below = [n for n in expected if n <= asked]
                assert found.last_up_to(asked) == (below[-1] if below else None)
    finally:
        segments._MOST_IN_PART = before


def test_addresses_that_fall_move_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one list each new address would move all that are there."""
    monkeypatch.setattr(segments, "_MOST_IN_PART", 64)
    moved: dict[int, int] = {}
    add = Ascending.add

    def seen(self: Ascending, number: int) -> None:
        add(self, number)
        longest = max(len(self._firsts), *map(len, self._parts))
        moved[id(self)] = max(longest, moved.get(id(self), 0))

    monkeypatch.setattr(Ascending, "add", seen)
    n = 2_000
    events = [
        {"action": action, "addr": 2 * (n - i) * MIB, "size": MIB, "stream": 0, "frames": []}
        for action in ("segment_alloc", "segment_free")
        for i in range(n)
    ]
    # Of a history that ends with what it has, and of one that ends with nothing.
    for history in (events[:n], events):
        there = [] if history is events else [_segment(e) for e in events[:n]]
        data = pickle.dumps({"segments": there, "device_traces": [history]}, 4)
        (account,) = profile_of(decode_snapshot(data, None), None).accounts
        assert account.reserved == sum(s["total_size"] for s in there)
    assert len(moved) >= 2
    assert max(moved.values()) <= 64


def _segment(e: dict[str, Any]) -> dict[str, Any]:
    size = e["size"]
    return {
        "device": 0,
        "address": e["addr"],
        "total_size": size,
        "allocated_size": 0,
        "active_size": 0,
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "segment_pool_id": (0, 0),
        "blocks": [{"address": e["addr"], "size": size, "requested_size": 0, "state": "inactive"}],
    }


def test_looking_for_holes_is_given_up_where_it_is_a_lot_of_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "_MOST_LOOKS", 1_000)
    found = Segments()
    for i in range(100):
        found.grow(4 * i * MIB, 2 * MIB, True)
    # In the middle of each, so that all free ranges have to be looked at.
    contradictions = sum(found.shrink((4 * i) * MIB + MIB // 2, MIB) for i in range(100))
    assert 80 < contradictions < 100
    assert found.reserved == 100 * MIB
    found.new_history()
    assert found.shrink(4 * 99 * MIB + MIB // 8, MIB // 8) == 0


def test_ranges_of_two_segments_are_never_one() -> None:
    found = Segments()
    for at in (0, 2):
        found.grow(at * MIB, 2 * MIB, False)
    assert sorted(found.free) == [(0, 2 * MIB), (2 * MIB, 2 * MIB)]
    assert found.free.take(2 * MIB) == 2 * MIB
    found.give(2 * MIB, 2 * MIB)
    assert sorted(found.free) == [(0, 2 * MIB), (2 * MIB, 2 * MIB)]
    # Those of growing ones, with a hole that is filled, are.
    for at in (8, 12, 10):
        found.grow(at * MIB, 2 * MIB, True)
    assert sorted(found.free)[2:] == [(8 * MIB, 6 * MIB)]

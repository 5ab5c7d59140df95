"""Content of the caching allocator at each instant, from the history that it keeps.

Note [Following the allocator]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``torch.cuda.memory._snapshot()["device_traces"]`` has an entry for each thing that the allocator
did, with what was *asked for*: rounded up to 512 bytes, then cut off a free block unless what would
remain is of no use (c10/cuda/CUDACachingAllocator.cpp, ``round_size`` and ``should_split``). Which
free block was taken the entry's address tells, so sizes follow without repeating the search.

A free block that another stream still uses is *awaiting*: freed by the program
(``free_requested``), not yet to be had (``free_completed``).

Where the history begins in the midst of a program, or events were lost because one thread took it
while another one allocated, what is there is taken from a snapshot
(``AllocatorHistory.take_over``). Events that contradict what was followed change nothing: the next
snapshot does not agree then.

Note [The instant that decides]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A job fits where the most that it *reserves* fits. The allocator seldom gives back, so many instants
have this maximum; of these the one at which most is allocated says best what the memory is for. So
it is the first with the greatest pair (reserved, allocated).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memprof.profiler.model import Category, SourceFrame, allocator_rules as rules

from .marks import Mark
from .segments import AllocatorSegment, Segments

LONG = 8
"""A block that lived for at least one part in so many of a history is in ``long_lived``."""


@dataclass(slots=True, eq=False)
class AllocatorBlock:
    """Memory that was handed out once.

    Attributes:
        requested, size: bytes that were asked for, and of the block.
        event: how many events had happened when it was handed out, its own included; 0 if that
            was before the history began.
        mark: number of the last mark before it was handed out.
        raw_frames: the program at that time as the allocator has it, innermost first.
        freed_after: number of the last mark before the program let go of it; None until then. Of
            one that is ``cut`` the last before the failure that made it do so.
        ended: how many events had happened when it could be handed out again; None until then.
        stream: on which it was asked for; 0 is the default stream.
        known_category: by the first mark that knew it, or persistent state if any knew it as that.
        written_often, checkpointed: whether it was written to often, or handed to a checkpointed
            function, at any mark.
        owner: classes of the module whose own it is, as the first mark knew it that did.
        cut: whether the program let go of it since something had failed: of what was there at the
            failure it is what went before anything else was asked for.
    """

    address: int
    requested: int
    size: int
    event: int
    mark: int
    raw_frames: Sequence[Mapping[str, Any]]
    freed_after: int | None = None
    ended: int | None = None
    stream: int = 0
    known_category: Category | None = None
    written_often: bool = False
    checkpointed: bool = False
    owner: str = ""
    cut: bool = False

    def lived_long(self, events: int) -> bool:
        """Tells whether it lived for much of a history of so many events, all of it within that."""
        return 0 < self.event <= (self.ended or 0) - events // LONG

    @property
    def frames(self) -> tuple[SourceFrame, ...]:
        return frames_of(self.raw_frames)

    def first_of(self, addresses: Sequence[int]) -> int | None:
        """The first of sorted addresses that lies in it; None if none does."""
        at = bisect.bisect_left(addresses, self.address)
        inside = at < len(addresses) and addresses[at] < self.address + self.size
        return addresses[at] if inside else None


@dataclass(slots=True)
class AllocatorInstant:
    """The instant of Note [The instant that decides]: bytes, how many events had happened, the
    number of the last mark; blocks that were handed out, or awaiting, with the addresses of the
    latter; and segments, each with its size then."""

    reserved: int = 0
    allocated: int = 0
    event: int = 0
    mark: int = 0
    blocks: list[AllocatorBlock] = field(default_factory=list)
    awaiting: set[int] = field(default_factory=set)
    segments: list[tuple[AllocatorSegment, int]] = field(default_factory=list)


class AllocatorHistory:
    """Follows the history of one device; see Note [Following the allocator].

    Attributes:
        allocated_bytes, most_allocated: of blocks that are handed out, now and at most.
        peak: the instant that decides.
        events: that were followed.
        corrected: how often what was followed was not what a snapshot had.
        out_of_memory: requests in bytes that failed, with the program of that time as the allocator
            has it: those of one place have one list of frames.
        mark: number of the last mark before what was followed last.
        long_lived: blocks that lived long (``AllocatorBlock.lived_long``) and are not there any
            more.
        failed_mark: number of the last mark before a failure, a request's or a backward's, after
            which nothing was asked for yet; None if there was none.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        on_block: Callable[[AllocatorBlock], None] | None = None,
        *,
        device: int = 0,
    ) -> None:
        """
        Args:
            settings: ``allocator_settings`` of a snapshot; None for the defaults.
            on_block: called with every block that is handed out; what becomes of it is noted in it.
            device: whose counts of marks are meant.
        """
        settings = settings or {}
        self._on_block = on_block
        self._device = device
        self.allocated_bytes = 0
        self.most_allocated = 0
        self.peak = AllocatorInstant()
        self.events = 0
        self.corrected = 0
        self.out_of_memory: list[tuple[int, Sequence[Mapping[str, Any]]]] = []
        limit = settings.get("max_split_size", -1)
        self._max_split: int | None = limit if limit > 0 else None
        self._divisions = {
            int(mib): int(parts)
            for mib, parts in settings.get("roundup_power2_divisions", {}).items()
        }
        self._segments = Segments()
        self._live: dict[int, AllocatorBlock] = {}
        self.mark = 0
        self.long_lived: list[AllocatorBlock] = []
        self.failed_mark: int | None = None
        self._requests = 0
        self._frees = 0
        self._peak_pending = False

    @property
    def reserved(self) -> int:
        """Bytes that the allocator has from the device."""
        return self._segments.reserved

    @property
    def live(self) -> Iterable[AllocatorBlock]:
        """Blocks that are handed out, or awaiting, now."""
        return self._live.values()

    @property
    def segments(self) -> Iterable[AllocatorSegment]:
        return self._segments

    def now(self) -> AllocatorInstant:
        """Segments and blocks at this instant, as if it were the one that decides."""
        peak = AllocatorInstant(self.reserved, self.allocated_bytes, self.events, self.mark)
        self._record_blocks(peak)
        return peak

    def feed(self, events: Iterable[Mapping[str, Any]], marks: Sequence[Mark] = ()) -> None:
        """Follow the next events of ``device_traces`` of one device, and all marks that were set
        so far."""
        for e in events:
            self.events += 1
            action = e["action"]
            if action == "alloc":
                self._advance_marks(marks, (self._requests, math.inf))
                self._alloc(e)
                self._requests += 1
            elif action == "free_requested":
                self._advance_marks(marks, (self._requests, self._frees))
                self._frees += 1
                self._free_requested(e["addr"])
            elif action == "free_completed":
                self._free_completed(e["addr"])
            elif action in ("segment_alloc", "segment_map"):
                # The peak needs no end here: now more is reserved than at any before.
                mapped = action == "segment_map"
                self._segments.grow(e["addr"], e["size"], mapped, e.get("pool_id"))
                self._note_peak()
            elif action in ("segment_free", "segment_unmap"):
                self._finish_peak()
                self._segments.shrink(e["addr"], e["size"])
            elif action == "oom":
                self.failed_mark = None
                self._advance_marks(marks, (self._requests, self._frees))
                if self.failed_mark is None:  # Else that what ran has raised is among these.
                    self.failed_mark = self.mark
                self.out_of_memory.append((e["size"], e.get("frames") or ()))
        self._advance_marks(marks, (math.inf, math.inf))
        self._finish_peak()
        self.long_lived = [b for b in self.long_lived if b.lived_long(self.events)]

    def continue_at(self, counts: tuple[int, int]) -> None:
        """Go on where so many blocks had been asked for, and let go of, as marks count them."""
        self._requests, self._frees = counts

    def take_over(self, segments: Iterable[Mapping[str, Any]]) -> None:
        """Go on from a snapshot's segments of this device, whatever was followed so far: it may be
        the peak. A block that was followed and is there keeps what is known of it."""
        self._finish_peak()
        followed, self._live = self._live, {}
        self._segments = Segments()
        self.allocated_bytes = 0
        for s in segments:
            if not s["total_size"]:  # Of an expandable one, addresses without memory.
                continue
            segment = AllocatorSegment(s["address"], s["total_size"], s.get("is_expandable", False))
            segment.pool = s.get("segment_pool_id", (0, 0))
            self._segments.add(segment)
            for b in s["blocks"]:
                if b["state"] == "inactive":
                    self._segments.free.add(b["address"], b["size"])
                else:
                    self._take_over_block(b, s.get("stream", 0), followed.get(b["address"]))
        for block in followed.values():
            if self._live.get(block.address) is not block:
                if block.freed_after is None:
                    block.freed_after = self.mark
                self._end(block)
        self._note_peak()
        self._finish_peak()

    def _take_over_block(
        self, found: Mapping[str, Any], stream: int, followed: AllocatorBlock | None
    ) -> None:
        address, requested, size = found["address"], found["requested_size"], found["size"]
        awaiting = found["state"] != "active_allocated"
        block = followed
        if (
            block is None
            or (block.requested, block.size) != (requested, size)
            or (block.freed_after is not None and not awaiting)
        ):
            block = self._block(address, requested, size, found.get("frames", ()), stream)
            if self._on_block is not None and self.events:
                self._on_block(block)
        if not awaiting:
            self.allocated_bytes += size
        elif block.freed_after is None:
            block.freed_after = self.mark
        self._live[address] = block

    def agrees(self, segments: Iterable[Mapping[str, Any]]) -> bool:
        """Tells whether as many bytes are reserved and handed out as a snapshot of this device
        has.
        """
        sizes = [(s["total_size"], s["allocated_size"]) for s in segments]
        found = sum(total for total, _ in sizes), sum(allocated for _, allocated in sizes)
        return found == (self.reserved, self.allocated_bytes)

    def _advance_marks(self, marks: Sequence[Mark], until: tuple[float, float]) -> None:
        while self.mark + 1 < len(marks):
            mark = marks[self.mark + 1]
            if mark.counts.get(self._device, (0, 0)) > until:
                break
            self.mark += 1
            self._apply_mark(mark)

    def _apply_mark(self, mark: Mark) -> None:
        """Note in the blocks that are there what a mark says of them."""
        if mark.cut:
            self.failed_mark = self.mark - 1
        for address in mark.checkpointed:
            block = self._live.get(address)
            if block is not None and block.freed_after is None:
                block.checkpointed = True
        known = sorted(mark.categories)
        often = sorted(mark.written_often)
        owners = sorted(mark.owners)
        for block in self._live.values() if known or often or owners else ():
            if block.freed_after is not None:
                continue
            if owners and not block.owner and (owned := block.first_of(owners)) is not None:
                block.owner = mark.owners[owned]
            address_in = block.first_of(known)
            category = None if address_in is None else mark.categories[address_in]
            # That something is written to may be seen later than that it is a module's.
            if block.known_category is None or category is Category.PERSISTENT_STATE:
                block.known_category = category
            if often and block.first_of(often) is not None:
                block.written_often = True

    def assign_pools(self, segments: Iterable[Mapping[str, Any]]) -> None:
        """Learn from the snapshot whose history was fed last to which pools segments belong."""
        for s in segments:
            mine = self._segments.at(s["address"])
            if mine is not None:
                mine.pool = s.get("segment_pool_id", (0, 0))

    # What the allocator can do.

    def _block(
        self, address: int, requested: int, size: int, frames: Any, stream: int
    ) -> AllocatorBlock:
        return AllocatorBlock(
            address, requested, size, self.events, self.mark, frames, stream=stream
        )

    def _alloc(self, e: Mapping[str, Any]) -> None:
        address, requested = e["addr"], e["size"]
        size = self.rounded(requested)
        segment = self._segments.at(address)
        there = None if segment is None else self._segments.free.take(address)
        if segment is not None and there is not None and there >= size:
            if self.cuts(there - size, size, segment.expandable):
                self._segments.free.add(address + size, there - size)
            else:
                size = there
        block = self._block(address, requested, size, e.get("frames", ()), e.get("stream", 0))
        self.failed_mark = None
        self._live[address] = block
        self.allocated_bytes += size
        if self._on_block is not None:
            self._on_block(block)
        self._note_peak()

    def _note_peak(self) -> None:
        self.most_allocated = max(self.most_allocated, self.allocated_bytes)
        reserved = self._segments.reserved
        if (reserved, self.allocated_bytes) > (self.peak.reserved, self.peak.allocated):
            self.peak = AllocatorInstant(reserved, self.allocated_bytes, self.events, self.mark)
            self._peak_pending = True

    def rounded(self, requested: int) -> int:
        """Bytes that are cut off for a request, c10's ``round_size``: rounded to 512 bytes, or
        where ``roundup_power2_divisions`` says so to a part of the power of two below."""
        size = max(rules.ROUNDING, rules.rounded(requested))
        exponent = max(0, min(15, requested.bit_length() - 21))
        parts = self._divisions.get(1 << exponent, 0)
        if parts <= 1 or requested <= rules.ROUNDING * parts:
            return size
        step = (1 << (requested.bit_length() - 1)) >> (parts.bit_length() - 1)
        return -(-requested // step) * step if step else size

    def cuts(self, rest: int, size: int, expandable: bool) -> bool:
        """Tells whether a block of so many bytes is cut off where ``rest`` would remain."""
        if expandable:
            return rest >= rules.ROUNDING
        limited = size > rules.SMALL and self._max_split is not None and size >= self._max_split
        return rules.is_cut(rest, size) and not limited

    def _free_requested(self, address: int) -> None:
        self._finish_peak()
        block = self._live.get(address)
        if block is None or block.freed_after is not None:
            return
        block.cut = self.failed_mark is not None
        block.freed_after = self.mark if self.failed_mark is None else self.failed_mark
        self.allocated_bytes -= block.size

    def _free_completed(self, address: int) -> None:
        self._finish_peak()
        block = self._live.pop(address, None)
        if block is None:
            return
        if block.freed_after is None:  # Graph pools are put back without a request.
            block.freed_after = self.mark
            self.allocated_bytes -= block.size
        self._end(block)
        if self._segments.at(address) is not None:
            self._segments.give(address, block.size)

    def _end(self, block: AllocatorBlock) -> None:
        block.ended = self.events
        if block.lived_long(self.events):
            self.long_lived.append(block)

    def _finish_peak(self) -> None:
        """Record the blocks of the peak before the first of them is freed."""
        if self._peak_pending:
            self._peak_pending = False
            self._record_blocks(self.peak)

    def _record_blocks(self, peak: AllocatorInstant) -> None:
        peak.blocks = [b for b in self._live.values() if b.event <= peak.event]
        peak.awaiting = {b.address for b in peak.blocks if b.freed_after is not None}
        # What was reserved after that instant would have made a later one the peak.
        peak.segments = [(s, s.size) for s in self._segments]


def frames_of(raw: Iterable[Mapping[str, Any]]) -> tuple[SourceFrame, ...]:
    """Frames as the allocator's history has them, made ours; innermost first."""
    return tuple(SourceFrame(f["filename"], f["line"], f["name"]) for f in raw)

"""Segments that the allocator has from a device, by address."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.profiler.model.address_ranges import FreeRanges


@dataclass(slots=True, eq=False)
class AllocatorSegment:
    """A range of addresses that the allocator had from the device; an expandable one grows.

    Attributes:
        pool: ``(0, 0)`` for the general pool, another pair for a private one (CUDA graphs,
            ``torch.cuda.MemPool``); None if it was given back before anybody asked and the history
            does not say: torch's before 2.13 does not.
    """

    address: int
    size: int
    expandable: bool
    pool: tuple[int, int] | None = None


class Segments:
    """Segments of one device, ``reserved`` bytes in all, and what is ``free`` inside of them."""

    def __init__(self) -> None:
        self.reserved = 0
        self.free = FreeRanges()
        self._by_address: dict[int, AllocatorSegment] = {}
        self._starts: list[int] = []  # ascending

    def __iter__(self) -> Iterator[AllocatorSegment]:
        return iter(self._by_address.values())

    def add(self, segment: AllocatorSegment) -> None:
        """Note a segment that was there before."""
        self._put(segment)
        self.reserved += segment.size

    def at(self, address: int) -> AllocatorSegment | None:
        segment = self._last_up_to(address)
        inside = segment is not None and address < segment.address + segment.size
        return segment if inside else None

    def grow(
        self, address: int, size: int, expandable: bool, pool: tuple[int, int] | None = None
    ) -> None:
        """Note memory that the device gave, and of which pool it is, as the history has that;
        nothing where other memory is there."""
        before = self._last_up_to(max(address, address + size - 1))
        if not size or (before is not None and before.address + before.size > address):
            return
        self.reserved += size
        touches = before is not None and before.address + before.size == address
        if before is not None and touches and expandable and before.expandable:
            segment = before
            segment.size += size
        else:
            segment = AllocatorSegment(address, size, expandable)
            self._put(segment)
        segment.pool = segment.pool or pool
        after = self._by_address.get(address + size) if expandable else None
        if after is not None and after.expandable:  # A hole between the two is filled.
            self._forget(after)
            segment.size += after.size
        self.give(address, size)

    def give(self, address: int, size: int) -> None:
        """A block is free again, as one with what is free beside it in its segment."""
        self.free.give(address, size, self._by_address)

    def shrink(self, address: int, size: int) -> None:
        """Note memory that the device got back; nothing where there was none."""
        segment = self.at(address)
        if segment is None:
            return
        self.reserved -= size
        end, tail = segment.address + segment.size, address + size
        free = self.free
        hole = free.around(address, tail)
        whole = None if hole is None else free.take(hole)
        if hole is not None and whole is not None:
            if hole < address:
                free.add(hole, address - hole)
            if tail < hole + whole:
                free.add(tail, hole + whole - tail)
        segment.size = address - segment.address
        if segment.size == 0:
            self._forget(segment)
        if tail < end and tail not in self._by_address:
            self._put(AllocatorSegment(tail, end - tail, segment.expandable, segment.pool))

    def _put(self, segment: AllocatorSegment) -> None:
        if segment.address not in self._by_address:
            bisect.insort(self._starts, segment.address)
        self._by_address[segment.address] = segment

    def _forget(self, segment: AllocatorSegment) -> None:
        del self._by_address[segment.address]
        del self._starts[bisect.bisect_left(self._starts, segment.address)]

    def _last_up_to(self, address: int) -> AllocatorSegment | None:
        """The segment that begins last at or below an address; None if none does."""
        i = bisect.bisect_right(self._starts, address)
        return self._by_address[self._starts[i - 1]] if i else None

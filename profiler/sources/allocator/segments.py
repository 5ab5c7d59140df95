"""Segments that the allocator has from a device, by address."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memprof.profiler.model.address_ranges import FreeRanges

_MOST_LOOKS = 5_000_000
"""Free ranges searched on frees between two calls of ``new_history``, at most: other people's
histories can have many holes and many events that fit none of them."""

_MOST_IN_PART = 512
"""Addresses in one list, at most: what an insertion moves."""


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
        self._starts = Ascending()
        self._looks = 0

    def __iter__(self) -> Iterator[AllocatorSegment]:
        return iter(self._by_address.values())

    def new_history(self) -> None:
        """It may look at as many free ranges as the last one."""
        self._looks = 0

    def add(self, segment: AllocatorSegment) -> None:
        """Note a segment that was there before."""
        self._put(segment)
        self.reserved += segment.size

    def at(self, address: int) -> AllocatorSegment | None:
        start = self._starts.last_up_to(address)
        if start is None:
            return None
        segment = self._by_address[start]
        return segment if address < segment.address + segment.size else None

    def grow(self, address: int, size: int, expandable: bool, pool: Any = None) -> bool:
        """Note memory that the device gave, and of which pool it is, as the history has that.
        Returns whether that was possible."""
        start = self._starts.last_up_to(max(address, address + size - 1))
        before = None if start is None else self._by_address[start]
        if not size or (before is not None and before.address + before.size > address):
            return not size
        self.reserved += size
        touches = before is not None and before.address + before.size == address
        if before is not None and touches and expandable and before.expandable:
            segment = before
            segment.size += size
        else:
            segment = AllocatorSegment(address, size, expandable)
            self._put(segment)
        segment.pool = segment.pool or pool_id(pool)
        after = self._by_address.get(address + size) if expandable else None
        if after is not None and after.expandable:  # A hole between the two is filled.
            self._forget(after)
            segment.size += after.size
        self.give(address, size)
        return True

    def give(self, address: int, size: int) -> None:
        """A block is free again, as one with what is free beside it in its segment."""
        self.free.give(address, size, self._by_address)

    def shrink(self, address: int, size: int) -> int:
        """The device got memory back; returns how much of that contradicts what was followed."""
        segment = self.at(address)
        if segment is None:
            return 1
        contradictions = 0
        self.reserved -= size
        end, tail = segment.address + segment.size, address + size
        free = self.free
        hole = free.beside(address, tail)
        if hole is None and self._looks <= _MOST_LOOKS:
            self._looks += len(free)
            hole = free.around(address, tail)
        whole = None if hole is None else free.take(hole)
        if hole is not None and whole is not None:
            if hole < address:
                free.add(hole, address - hole)
            if tail < hole + whole:
                free.add(tail, hole + whole - tail)
        else:
            contradictions += 1
        segment.size = address - segment.address
        if segment.size == 0:
            self._forget(segment)
        if tail < end and tail in self._by_address:
            contradictions += 1
        elif tail < end:
            self._put(AllocatorSegment(tail, end - tail, segment.expandable, segment.pool))
        return contradictions

    def _put(self, segment: AllocatorSegment) -> None:
        if segment.address not in self._by_address:
            self._starts.add(segment.address)
        self._by_address[segment.address] = segment

    def _forget(self, segment: AllocatorSegment) -> None:
        del self._by_address[segment.address]
        self._starts.remove(segment.address)


def pool_id(found: Any) -> tuple[int, int] | None:
    """The id of a pool as a snapshot or its history has it; None if that is none."""
    pair = tuple(found) if isinstance(found, (tuple, list)) else ()
    return (pair[0], pair[1]) if [type(n) for n in pair] == [int, int] else None


class Ascending:
    """Different numbers in ascending order, in lists none of which is long: of one list each new
    number would move half, or all where they come falling."""

    def __init__(self) -> None:
        self._parts: list[list[int]] = []
        self._firsts: list[int] = []

    def add(self, number: int) -> None:
        if not self._parts:
            self._parts, self._firsts = [[number]], [number]
            return
        i = max(0, bisect.bisect_right(self._firsts, number) - 1)
        part = self._parts[i]
        bisect.insort(part, number)
        self._firsts[i] = part[0]
        if len(part) > _MOST_IN_PART:
            half = len(part) // 2
            self._parts.insert(i + 1, part[half:])
            self._firsts.insert(i + 1, part[half])
            del part[half:]

    def remove(self, number: int) -> None:
        i = bisect.bisect_right(self._firsts, number) - 1
        part = self._parts[i]
        del part[bisect.bisect_left(part, number)]
        if part:
            self._firsts[i] = part[0]
        else:
            del self._parts[i], self._firsts[i]

    def last_up_to(self, number: int) -> int | None:
        """The largest that is not above a number; None if all are."""
        i = bisect.bisect_right(self._firsts, number) - 1
        if i < 0:
            return None
        part = self._parts[i]
        return part[bisect.bisect_right(part, number) - 1]

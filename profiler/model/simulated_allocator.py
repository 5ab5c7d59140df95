"""Serves requests at addresses that are made up, by the rules of torch's caching allocator.

Note [How requests are served]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A request gets the smallest free block of its stream and size class that is large enough, the lowest
address first, cut off where the rest is of use; else a new segment. Segments are never given back,
as those of a private pool are not while a graph has it.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .address_ranges import BestFit
from .allocator_rules import SMALL, is_cut, segment_size


class SegmentRange(NamedTuple):
    """A contiguous range of addresses that the allocator had from a device."""

    address: int
    nbytes: int
    small: bool = False  # it takes requests of at most ``SMALL`` bytes, as no other does

    def blocks(self, taken: Mapping[int, int]) -> Iterator[tuple[int, int, bool]]:
        """(address, bytes, taken) of each part, in order and without gaps; ``taken``: bytes by
        address."""
        at, end = self.address, self.address + self.nbytes
        for address in sorted(a for a in taken if self.address <= a < end):
            if at < address:
                yield at, address - at, False
            yield address, taken[address], True
            at = address + taken[address]
        if at < end:
            yield at, end - at, False


class SimulatedAllocator:
    """Hands out addresses and takes them back, see Note [How requests are served].

    Attributes:
        segments: in order of their addresses.
        taken: bytes of the blocks that are handed out, by address.
    """

    def __init__(self, base: int = 0, gap: int = 0) -> None:
        """``base`` is the address of the first segment; each further one lies above all others,
        ``gap`` bytes apart."""
        self.segments: list[SegmentRange] = []
        self.taken: dict[int, int] = {}
        self._base, self._gap = base, gap
        self._free: defaultdict[tuple[int, bool], BestFit] = defaultdict(BestFit)
        """Free lists by stream, and whether they are for small requests."""
        self._free_of: dict[int, BestFit] = {}
        """Free list to which a block returns, by address of a block that is handed out."""
        self._borders: set[int] = set()

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(s.nbytes for s in self.segments)

    def add_segment(
        self, address: int, nbytes: int, *, stream: int = 0, small: bool = False
    ) -> SegmentRange:
        """Note a segment, all of it free."""
        segment = SegmentRange(address, nbytes, small)
        bisect.insort(self.segments, segment)
        self._borders.add(address)
        self._free[stream, small].add(address, nbytes)
        return segment

    def allocate(
        self, size: int, *, stream: int = 0, at: int | None = None
    ) -> tuple[int, SegmentRange | None]:
        """Returns the address of a block for a rounded request, and the segment that was made for
        it, if one was: at address ``at`` if that is vacant."""
        small = size <= SMALL
        free = self._free[stream, small]
        address, made = free.best(size), None
        if address is None:
            whole = segment_size(size)
            made = self.add_segment(self._place(at, whole), whole, stream=stream, small=small)
            address = made.address
        room = free.take(address) or 0
        if is_cut(room - size, size):
            free.add(address + size, room - size)
            room = size
        self.taken[address] = room
        self._free_of[address] = free
        return address, made

    def free(self, address: int) -> None:
        """Take a block back."""
        self._free_of.pop(address).give(address, self.taken.pop(address), self._borders)

    def _place(self, at: int | None, size: int) -> int:
        if at is not None and self._is_vacant(at, size):
            return at
        if not self.segments:
            return self._base
        last = self.segments[-1]
        return last.address + last.nbytes + self._gap

    def _is_vacant(self, address: int, size: int) -> bool:
        after = bisect.bisect_right(self.segments, (address,))
        before = self.segments[after - 1] if after else None
        if before is not None and before.address + before.nbytes > address:
            return False
        return after == len(self.segments) or address + size <= self.segments[after].address

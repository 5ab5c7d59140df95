"""Addresses for blocks of which only the size is known, by the rules of torch's caching allocator:
memory_viz draws by address, and a program on the CPU or of a compiled graph has none.

Note [How requests are served]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A request gets the smallest free block of its size class that is large enough, the lowest address
first, cut off where the rest is of use; else a new segment. Segments are never given back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from memprof.profiler.model.address_ranges import BestFit
from memprof.profiler.model.allocator_rules import SMALL, is_cut, segment_size


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


class MadeUpAddresses:
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
        self._next, self._gap = base, gap
        self._free: defaultdict[bool, BestFit] = defaultdict(BestFit)
        """Free lists, by whether they are for small requests."""
        self._free_of: dict[int, BestFit] = {}
        """Free list to which a block returns, by address of a block that is handed out."""
        self._borders: set[int] = set()

    def allocate(self, size: int) -> tuple[int, SegmentRange | None]:
        """Returns the address of a block for a rounded request, and the segment that was made for
        it, if one was."""
        small = size <= SMALL
        free = self._free[small]
        address, made = free.best(size), None
        if address is None:
            address = self._next
            made = SegmentRange(address, segment_size(size), small)
            self.segments.append(made)
            self._next += made.nbytes + self._gap
            self._borders.add(address)
            free.add(address, made.nbytes)
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

"""Addresses for memory whose addresses nobody recorded.

A profile knows sizes, order and identity of memory, not where it was. Tools that draw memory by
address get a layout that an allocator could have made of the same requests: best fit, blocks split
and merged again, segments as large as those of torch's CUDA caching allocator. It shows which
memory overlaps in time, and that this much is needed; its fragmentation is that of this layout,
not of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..device.ranges import BestFit
from ..device.replay import ROUNDING, SMALL, segment_size

_GAP = 2 << 20
"""Left free between segments, so that memory of two is never one block."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A contiguous range of addresses.

    Attributes:
        address: its first byte.
        nbytes: its length.
        small: it takes requests of at most 1 MiB, and no other does.
    """

    address: int
    nbytes: int
    small: bool


class AddressSpace:
    """Hands out addresses and takes them back.

    Args:
        base: address of the first segment.

    Attributes:
        segments: in order of address; they are never given back.
    """

    def __init__(self, base: int) -> None:
        self.segments: list[Segment] = []
        self._next = base
        self._free = {small: BestFit() for small in (True, False)}
        self._used: dict[int, tuple[BestFit, int]] = {}

    def allocate(self, nbytes: int) -> tuple[int, Segment | None]:
        """The address of a block of at least ``nbytes``, and the segment made for it, if any.

        Raises:
            ValueError: ``nbytes`` is not positive.
        """
        if nbytes <= 0:
            raise ValueError(f"a block of {nbytes} bytes has no address; sizes begin at 1")
        size = -(-nbytes // ROUNDING) * ROUNDING
        free = self._free[size <= SMALL]
        address, made = free.best(size), None
        if address is None:
            made = Segment(self._next, segment_size(size), size <= SMALL)
            self._next += made.nbytes + _GAP
            self.segments.append(made)
            address = made.address
            free.add(address, made.nbytes)
        room = free.take(address) or 0
        if room > size:
            free.add(address + size, room - size)
        self._used[address] = free, size
        return address, made

    def free(self, address: int) -> None:
        """Give a block back.

        Raises:
            KeyError: there is none at ``address``.
        """
        free, size = self._used.pop(address)
        free.give(address, size)

    def blocks(self, segment: Segment) -> list[tuple[int, int, bool]]:
        """(address, bytes, handed out) of each block of a segment, in order; without gaps."""
        end = segment.address + segment.nbytes
        used = ((a, size, True) for a, (_, size) in self._used.items())
        free = ((a, size, False) for a, size in self._free[segment.small])
        return sorted(b for b in (*used, *free) if segment.address <= b[0] < end)

"""Addresses for memory whose addresses nobody recorded.

A profile knows sizes, order and identity of memory, not where it was. Tools that draw memory by
address get a layout that an allocator could have made of the same requests: best fit, blocks split
and merged again, segments as large as those of torch's CUDA caching allocator. It shows which
memory overlaps in time, and that this much is needed; its fragmentation is that of this layout,
not of the run.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIB = 1 << 20
ALIGNMENT = 512
"""Bytes; torch's CUDA allocator rounds every request up to it."""
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_MEDIUM, _MEDIUM_SEGMENT = 10 * MIB, 20 * MIB
_GAP = 2 * MIB
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
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._size_at: dict[int, int] = {}
        self._room_at: dict[int, int] = {}
        self._free_until: dict[int, int] = {}
        self._segment: dict[int, Segment] = {}
        """Of each block, free or not: its segment. ``_size_at`` has those handed out, ``_room_at``
        the free ones by their first byte, ``_free_until`` by the byte after their last."""

    def allocate(self, nbytes: int) -> tuple[int, Segment | None]:
        """The address of a block of at least ``nbytes``, and the segment made for it, if any.

        Raises:
            ValueError: ``nbytes`` is not positive.
        """
        if nbytes <= 0:
            raise ValueError(f"a block of {nbytes} bytes has no address; sizes begin at 1")
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        free = self._free[size <= _SMALL]
        at = bisect_left(free, (size, 0))
        made = None
        if at == len(free):
            made = self._grow(size)
            at = bisect_left(free, (size, 0))
        room, address = free.pop(at)
        del self._free_until[address + room], self._room_at[address]
        segment = self._segment[address]
        if room > size:
            self._add(address + size, room - size, segment)
        self._size_at[address] = size
        return address, made

    def free(self, address: int) -> None:
        """Give a block back.

        Raises:
            KeyError: there is none at ``address``.
        """
        size = self._size_at.pop(address)
        segment = self._segment[address]
        free = self._free[segment.small]
        before = self._free_until.pop(address, None)
        if before is not None:
            free.pop(bisect_left(free, (self._room_at.pop(before), before)))
            del self._segment[address]
            address, size = before, size + address - before
        after = address + size
        room = self._room_at.pop(after, None)
        if room is not None:
            free.pop(bisect_left(free, (room, after)))
            del self._segment[after], self._free_until[after + room]
            size += room
        self._add(address, size, segment)

    def blocks(self, segment: Segment) -> list[tuple[int, int, bool]]:
        """(address, bytes, handed out) of each block of a segment, in order; without gaps."""
        end = segment.address + segment.nbytes
        starts = sorted(a for a, s in self._segment.items() if s is segment)
        return [
            (a, b - a, a in self._size_at) for a, b in zip(starts, [*starts[1:], end], strict=True)
        ]

    def _grow(self, size: int) -> Segment:
        if size <= _SMALL:
            nbytes = _SMALL_SEGMENT
        elif size < _MEDIUM:
            nbytes = _MEDIUM_SEGMENT
        else:
            nbytes = -(-size // _SMALL_SEGMENT) * _SMALL_SEGMENT
        segment = Segment(self._next, nbytes, size <= _SMALL)
        self._next += nbytes + _GAP
        self.segments.append(segment)
        self._add(segment.address, nbytes, segment)
        return segment

    def _add(self, address: int, size: int, segment: Segment) -> None:
        insort(self._free[segment.small], (size, address))
        self._free_until[address + size] = address
        self._room_at[address] = size
        self._segment[address] = segment

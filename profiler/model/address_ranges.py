"""Ranges of addresses: which overlap, who shares them, and free ones found by end or by size."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

Range = tuple[int, int]
"""First address, and the one after the last."""


def total(ranges: Iterable[Range]) -> int:
    """Bytes of ranges that do not overlap."""
    return sum(end - begin for begin, end in ranges)


def has(ranges: Sequence[Range], address: int) -> bool:
    """Whether an address lies in one of ``ranges``, which ascend and do not overlap."""
    at = bisect.bisect_right(ranges, (address, math.inf)) - 1
    return at >= 0 and address < ranges[at][1]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Joins ranges that overlap or touch: as few as possible, ascending."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def clipped(ranges: Sequence[Range], to: Sequence[Range]) -> list[Range]:
    """Intersection of ``ranges`` with ``to``; each ascends and has no overlaps."""
    found: list[Range] = []
    i = j = 0
    while i < len(ranges) and j < len(to):
        begin, end = max(ranges[i][0], to[j][0]), min(ranges[i][1], to[j][1])
        if begin < end:
            found.append((begin, end))
        if ranges[i][1] < to[j][1]:
            i += 1
        else:
            j += 1
    return found


def shares(uses: Mapping[int, Iterable[Range]]) -> Counter[tuple[int, ...]]:
    """Bytes by who uses them: each byte counts once, for all numbers that have it together."""
    numbers = sorted(uses)
    edges = sorted(
        (address, 1 << i) for i, n in enumerate(numbers) for r in uses[n] for address in r
    )
    # A set as bits of an integer: most bytes are in the ranges of very many.
    found: Counter[int] = Counter()
    inside = last = 0
    for address, bit in edges:
        if inside and address > last:
            found[inside] += address - last
        inside ^= bit
        last = address
    return Counter(
        {tuple(n for i, n in enumerate(numbers) if bits >> i & 1): b for bits, b in found.items()}
    )


class FreeRanges:
    """Ranges of addresses that are free, none of which touch unless the allocator says so."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        """First address of each range, by the address after its last."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First address and bytes of each range."""
        return iter(self._sizes.items())

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, address: int, size: int) -> None:
        """Note a range as it is."""
        self._sizes[address] = size
        self._begins[address + size] = address

    def take(self, address: int) -> int | None:
        """Forget the range that begins at an address, and return its bytes; None if none does."""
        size = self._sizes.pop(address, None)
        if size is not None and self._begins.get(address + size) == address:
            del self._begins[address + size]
        return size

    def give(self, address: int, size: int, borders: Container[int] = ()) -> None:
        """Note a range, as one with those that it touches but at ``borders``."""
        if address + size not in borders:
            size += self.take(address + size) or 0
        before = None if address in borders else self._begins.get(address)
        if before is not None:
            size += self.take(before) or 0
            address = before
        self.add(address, size)

    def around(self, address: int, end: int) -> int | None:
        """First address of the free range that contains ``[address, end)``; None if there is none.
        A linear search."""
        return next((a for a, n in self if a <= address and end <= a + n), None)


class BestFit(FreeRanges):
    """Free ranges of which the smallest that is large enough is handed out."""

    def __init__(self) -> None:
        super().__init__()
        self._ordered: list[tuple[int, int]] = []

    def best(self, size: int) -> int | None:
        """First address of the smallest range of at least ``size`` bytes, of equal ones the lowest;
        None if there is none."""
        at = bisect.bisect_left(self._ordered, (size, 0))
        return self._ordered[at][1] if at < len(self._ordered) else None

    def add(self, address: int, size: int) -> None:
        super().add(address, size)
        bisect.insort(self._ordered, (size, address))

    def take(self, address: int) -> int | None:
        size = super().take(address)
        if size is not None:
            del self._ordered[bisect.bisect_left(self._ordered, (size, address))]
        return size

"""Ranges of addresses, and who has which of them."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

Range = tuple[int, int]
"""First address, and the one after the last."""


def total(ranges: Iterable[Range]) -> int:
    """Bytes of ranges that do not overlap."""
    return sum(end - begin for begin, end in ranges)


def has(ranges: Sequence[Range], address: int) -> bool:
    """Whether an address lies in one of some ranges, which ascend and do not overlap."""
    at = bisect.bisect_right(ranges, (address, math.inf)) - 1
    return at >= 0 and address < ranges[at][1]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same addresses in as few ranges as possible, ascending."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def clipped(ranges: Sequence[Range], to: Sequence[Range]) -> list[Range]:
    """What of ranges lies in others; both ascend and do not overlap."""
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

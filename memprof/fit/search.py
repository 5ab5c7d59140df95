"""The largest value that fits, in few tries.

Note [How the largest is found]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It is assumed that what fits also fits with a smaller value. Between a value that fits and one that
does not, bisection needs log2(n) tries, a minute each. But what a step needs is nearly a straight
line in the batch: weights, and so much a sample. So the next try is where the line through the two
largest values that fit reaches the device's memory, and the one after it is the next larger value,
which must fail: mostly four tries in all.

The line is of what is allocated: what is reserved bends near the end, where the allocator gives
back what is free before it fails. What fragmentation takes below its end no line tells. But a value
that failed tells how much its request was short of: by so much, along the line, the next try is
below it, and by a twelfth of it at least where the line comes from far below. What fits there makes
a better line, or bisection finds the end. Where a line misleads altogether (sizes are padded,
graphs differ), a pair of tries that did not halve what is left is followed by one in its middle:
never more than three times as many tries as bisection alone.

No value is reported that was not run: the largest fitted, and the next larger one was seen to fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_BACK = 1 / 12
"""How far below a value that failed the next try is, as a share of it."""


@dataclass(frozen=True, slots=True)
class Try:
    """What came out of running one value: whether it fits, bytes of the device that it could not do
    without where it does, and bytes that the request which failed was short of, 0 if nobody knows.
    """

    fits: bool
    needed: int = 0
    short: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes that are needed as a straight line: ``base + slope * index``."""

    base: float
    slope: float

    def reaches(self, memory: int) -> int | None:
        """The last index at which no more than ``memory`` is needed; None of a line that does not
        rise."""
        if self.slope <= 0:
            return None
        return int(min(max((memory - self.base) / self.slope, -1.0), 1e15))


def _through(fits: dict[int, int]) -> Line | None:
    if len(fits) < 2:
        return None
    a, b = sorted(fits)[-2:]
    slope = (fits[b] - fits[a]) / (b - a)
    return Line(fits[b] - slope * b, slope)


def largest(
    count: int,
    memory: int,
    probe: Callable[[int], Try],
    *,
    second: int = 3,
    guess: Line | None = None,
) -> tuple[int, Line | None]:
    """The largest index that fits; see Note [How the largest is found].

    Args:
        count: of indices, from 0.
        memory: bytes of the device.
        probe: runs one; called at most once for each index.
        second: index to try after 0 has fitted.
        guess: what is known from elsewhere about a similar search.

    Returns:
        The index, -1 where not even the first one fits; and the line through what fitted, None
        where fewer than two did.
    """
    fits: dict[int, int] = {}
    low, high = -1, count
    widths: list[int] = []
    stride, failed, short = 1, False, 0
    while high - low > 1:
        middle = (low + high) // 2
        line = _through(fits) or guess
        wanted = line.reaches(memory) if line is not None else None
        widths.append(high - low)
        stuck = len(widths) > 2 and widths[-1] * 2 > widths[-3]
        if low == -1 and guess is None:
            index = 0
        elif stuck and high < count:
            index = middle
        elif failed and line is not None and line.slope > 0:
            # A line from far below is no better than a guess, whatever the request was short of.
            least = high * _BACK if 2 * low < high else 1
            index = max(high - math.ceil(max(short / line.slope, least)), middle)
        elif wanted is not None and wanted >= high < count:
            index = middle
        elif low >= 0 and wanted is not None and wanted <= low + stride:
            # The line says that it is full; where it fits all the same, strides get longer.
            index = low + stride
            stride *= 2
        elif wanted is not None:
            index = wanted
        elif line is not None:  # It does not rise.
            index = high - 1
        else:
            index = second
        index = min(max(index, low + 1), high - 1)
        found = probe(index)
        if found.fits:
            low = index
            fits[index] = found.needed
        else:
            high, short = index, found.short
        failed = not found.fits
    return low, _through(fits)

"""Where to put buffers of known size and lifetime: offsets in one piece of memory.

The problem is strip packing with fixed positions in time, NP-hard in general, and easy on
the programs that compilers write. Each buffer is put into the lowest gap that is free
during its whole life; what differs between attempts is the order in which buffers are
placed, and the attempt that needs the fewest bytes wins. The largest first is the order
of TensorFlow Lite's planner (Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference", 2020); the others catch programs on which it does badly. Where all
of them leave a gap to the lower bound, the buffer that ended up highest is placed first
the next time, for a number of rounds.

No torch here: a plan is pure data.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes; what torch's CPU allocator aligns to, and a cache line."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer to place.

    Attributes:
        nbytes: its size.
        begin, end: it is live at the instants ``begin <= t < end``.
    """

    nbytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where each buffer lies, and how much memory that takes.

    Attributes:
        offsets: of each buffer, in bytes, multiples of the alignment.
        nbytes: size of the memory.
        lower_bound: the most bytes, rounded up to the alignment, that are live at one
            instant; no plan needs fewer.
    """

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int


def plan(buffers: Sequence[Lifetime], alignment: int = ALIGNMENT) -> Offsets:
    """Place ``buffers`` so that no two that are live at the same time overlap.

    Args:
        buffers: in any order.
        alignment: of each offset, bytes.

    Returns:
        The best of a few greedy plans; the same for the same buffers.

    Raises:
        ValueError: a buffer has a negative size or ends before it begins.
    """
    for b in buffers:
        if b.nbytes < 0 or b.end < b.begin:
            raise ValueError(f"{b} cannot be placed: a size is 0 or more, an end follows its begin")
    sizes = [-(-b.nbytes // alignment) * alignment for b in buffers]
    bound = _lower_bound(buffers, sizes)
    best: _Attempt | None = None
    for order in _tries(buffers):
        tried = _place(buffers, sizes, order)
        if best is None or tried.nbytes < best.nbytes:
            best = tried
        if best.nbytes == bound:
            break
        order.remove(tried.highest)
        order.insert(0, tried.highest)
    assert best is not None
    return Offsets(tuple(best.offsets), best.nbytes, bound)


def _tries(buffers: Sequence[Lifetime]) -> Iterator[list[int]]:
    """Orders to try. A list that comes again has been changed in between by ``plan``, which
    moves the highest buffer of an attempt to the front."""
    starts = [_in_order(buffers, order) for order in _ORDERS]
    yield from starts
    for start in (starts[0], starts[-1]):
        for _ in range(min(_ROUNDS, _EFFORT // len(buffers) ** 2)):
            yield start


def _in_order(buffers: Sequence[Lifetime], order: _Order) -> list[int]:
    return sorted(range(len(buffers)), key=lambda i: order(buffers[i]))


_ROUNDS = 100
_EFFORT = 10_000_000
"""Rounds times buffers squared at most; about a second."""

_Order = Callable[[Lifetime], tuple[int, ...]]

_ORDERS: tuple[_Order, ...] = (
    # The largest first; among equals, the longest-lived.
    lambda b: (-b.nbytes, b.begin - b.end, b.begin),
    # The longest-lived first: they are in everybody's way.
    lambda b: (b.begin - b.end, -b.nbytes, b.begin),
    # The largest area in the plane of time and bytes first.
    lambda b: (-b.nbytes * (b.end - b.begin), b.begin),
    # As they come, which is what an allocator at run time would do.
    lambda b: (b.begin, -b.nbytes),
    # From the end backwards.
    lambda b: (-b.end, -b.nbytes),
)


class _Attempt(NamedTuple):
    offsets: list[int]
    nbytes: int
    highest: int
    """Which buffer ends at ``nbytes``."""


def _place(buffers: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]) -> _Attempt:
    offsets = [0] * len(buffers)
    nbytes = highest = 0
    placed: list[tuple[int, int, int, int]] = []  # (offset, end of it, begin, end), by offset
    for i in order:
        if not sizes[i]:
            continue
        begin, end, free = buffers[i].begin, buffers[i].end, 0
        for offset, after, b, e in placed:
            if b < end and begin < e:
                if offset - free >= sizes[i]:
                    break
                if after > free:
                    free = after
        offsets[i] = free
        insort(placed, (free, free + sizes[i], begin, end))
        if free + sizes[i] > nbytes:
            nbytes, highest = free + sizes[i], i
    return _Attempt(offsets, nbytes, highest)


def _lower_bound(buffers: Sequence[Lifetime], sizes: Sequence[int]) -> int:
    changes = []
    for b, n in zip(buffers, sizes, strict=True):
        if b.begin < b.end:
            changes += [(b.begin, n), (b.end, -n)]
    live = most = 0
    for _, change in sorted(changes):  # at one instant, ends (negative) come first
        live += change
        most = max(most, live)
    return most

"""How large a private pool would have become, had some of its requests not been made.

Note [Playing the allocator]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What one capture costs is not by how much its pool grew meanwhile: without it the next one may have
grown the pool instead. So the requests of the pool are served again, without those of the capture,
by the rules of c10/cuda/CUDACachingAllocator.cpp: the smallest free block of the request's stream
and size class that is large enough, the lowest address first, cut off as in ``Replay``; else a new
segment (``segment_size``), which no private pool gives back while a graph has it. That lies where
the allocator put it for the same request, as far as that is free, since addresses decide between
free blocks of one size.

Served again with all of its requests a pool must come out as it is, or nothing is said of it: with
expandable segments, ``max_split_size``, or where several streams' frees were put off.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .ranges import BestFit
from .replay import SMALL, Block, is_cut

_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_OWN_SEGMENT = 10 << 20
"""Requests from so many bytes on get a segment of their own size."""
_ROUND_LARGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A block that a pool was asked for.

    Attributes:
        block: what was handed out.
        size: bytes to cut off for it.
        segment: address of the segment in which it was.
        capture: number of the capture that asked; 0 for none.
    """

    block: Block
    size: int
    segment: int
    capture: int


class SimulatedPool:
    """A private pool that serves requests; see Note [Playing the allocator].

    Attributes:
        reserved: bytes of its segments.
    """

    def __init__(self) -> None:
        self.reserved = 0
        # By stream, and whether it is for small requests.
        self._free: defaultdict[tuple[int, bool], BestFit] = defaultdict(BestFit)
        self._segments: list[tuple[int, int]] = []
        self._borders: set[int] = set()
        self._used: dict[int, tuple[BestFit, int, int]] = {}

    def add_segment(self, address: int, size: int, stream: int, small: bool) -> None:
        """Have a segment, all of it free."""
        self.reserved += size
        bisect.insort(self._segments, (address, address + size))
        self._borders.add(address)
        self._free[stream, small].add(address, size)

    def serve(self, request: Request) -> None:
        """Hand out a block."""
        of, size = (request.block.stream, request.size <= SMALL), request.size
        free = self._free[of]
        address = free.best(size)
        if address is None:
            whole = segment_size(size)
            address = self._place(request.segment, whole)
            self.add_segment(address, whole, *of)
        there = free.take(address) or 0
        if is_cut(there - size, size):
            free.add(address + size, there - size)
            there = size
        self._used[id(request.block)] = free, address, there

    def let_go(self, block: Block) -> None:
        """Take a block back that was handed out; of any other one nothing is known."""
        if id(block) in self._used:
            free, address, size = self._used.pop(id(block))
            free.give(address, size, self._borders)

    def _place(self, address: int, size: int) -> int:
        """Where a new segment lies: at ``address`` if nothing is there, else above all."""
        at = bisect.bisect_right(self._segments, (address, 0))
        before = self._segments[at - 1][1] if at else 0
        after = self._segments[at][0] if at < len(self._segments) else address + size
        if before <= address and address + size <= after:
            return address
        return self._segments[-1][1]


def segment_size(size: int) -> int:
    """Bytes of the segment that the allocator gets for a request of a rounded size."""
    if size <= SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT:
        return _LARGE_SEGMENT
    return -(-size // _ROUND_LARGE) * _ROUND_LARGE


def reserved_without(requests: Sequence[Request], left_out: Collection[int] = ()) -> int:
    """Bytes that a pool has in the end, from all requests since it was empty but for those of the
    captures with the numbers ``left_out``."""
    pool = SimulatedPool()
    steps: list[tuple[int, Request | Block]] = []
    for r in requests:
        if r.capture not in left_out:
            steps.append((r.block.event, r))
            if r.block.ended is not None:
                steps.append((r.block.ended, r.block))
    for _, step in sorted(steps, key=lambda step: step[0]):
        if isinstance(step, Request):
            pool.serve(step)
        else:
            pool.let_go(step)
    return pool.reserved

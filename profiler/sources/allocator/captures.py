"""From captures and the blocks of a device's history to what each graph has in its pool.

Note [Which memory is a graph's]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A graph replays at the addresses that its capture was given. So everything that the capture asked
for in its pool, between its begin and its end (``Mark``s, which ``graph_watch`` sets), is the
graph's as long as the graph is, whether it was let go of at once or not; and what was let go of
within a capture may be handed out again to a later one: these bytes are shared. What was asked for
in a pool outside of captures, as in a warm-up or for static inputs, is no graph's; nor is what a
capture asks for in other pools, such as tensors for random numbers.

Note [The instant of a pool]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pool is described as it is at the end of the session, or where all of its graphs are deleted by
then, as it was when the last capture into it had ended.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.profiler.model import Category, Fate, GraphCapture, GraphPool, Held, SharedBytes
from memprof.profiler.model.address_ranges import Range, clipped, has, merged, shares, total

from .account import name_of_pool, rows_of
from .history import AllocatorBlock, AllocatorHistory
from .where import source_of, where


@dataclass(slots=True, eq=False)
class WatchedCapture:
    """A capture as it was seen.

    Attributes:
        graph: what is known so far.
        pool: its pool; None where it failed before that was known.
        begin, end: numbers of the marks between which it ran; infinite until it has ended.
        found: segments of the pool when it began.
        segments: of the pool when it had ended.
        deleted_ns: ``time.perf_counter_ns()`` when the graph was deleted; None as long as it is.
        reference: to the graph, where the capture ended well.
        handled: ``id`` of the exception that was being handled when it began.
    """

    graph: GraphCapture
    device: int
    pool: tuple[int, int] | None
    begin: int
    end: float = math.inf
    found: tuple[Range, ...] = ()
    segments: tuple[Range, ...] = ()
    deleted_ns: int | None = None
    reference: Callable[[], Any] = lambda: None
    handled: int = 0

    @property
    def ended_ns(self) -> int:
        """``time.perf_counter_ns()`` when it had ended."""
        return self.graph.start_ns + self.graph.duration_ns


@dataclass(frozen=True, slots=True)
class Device:
    """State of a device when the session ends.

    Attributes:
        blocks: those of captures and of the pools that were captured into, in order.
        held: first bytes of storages that tensors in Python have, ascending, on any device.
        workspaces: sizes that cuBLAS's workspaces have.
    """

    name: str
    history: AllocatorHistory
    blocks: Sequence[AllocatorBlock]
    held: Sequence[int]
    workspaces: Collection[int]


def describe(device: Device, captures: Sequence[WatchedCapture]) -> list[GraphPool]:
    """The private pools of a device, the one with most first; captures are its, in order."""
    now: dict[tuple[int, int] | None, list[Range]] = {}
    for s in device.history.segments:
        if s.pool is not None and s.pool != (0, 0):
            now.setdefault(s.pool, []).append((s.address, s.address + s.size))
    into: dict[tuple[int, int] | None, list[WatchedCapture]] = {}
    for c in captures:
        into.setdefault(c.pool, []).append(c)
    pools = [
        _Pool(device, pool, into.get(pool, []), sorted(now.get(pool, []))).described()
        for pool in {**now, **into}
    ]
    return sorted(pools, key=lambda p: (p.gone, -p.reserved))


class _Pool:
    """A pool at the instant at which it is described."""

    def __init__(
        self,
        device: Device,
        id: tuple[int, int] | None,
        captures: Sequence[WatchedCapture],
        now: Sequence[Range],
    ) -> None:
        self._device = device
        self._id = id
        self._captures = captures
        self._now = self._segments = now
        # Number of the mark of that instant; None for the end.
        self._instant: float | None = None
        self._gone = bool(captures) and all(c.deleted_ns is not None for c in captures)
        until: float = math.inf
        if self._gone:
            last = max(captures, key=lambda c: c.ended_ns)
            self._segments, self._instant, until = last.segments, last.end, last.ended_ns
        for c in captures:
            c.graph.deleted = c.deleted_ns is not None and c.deleted_ns < until
        begins = [c.begin for c in captures]
        self._mine = [b for b in device.blocks if self._is_mine(b, begins)]
        self._workspaces = self._find_workspaces()
        self._blocks = [(c.graph, self._blocks_of(c)) for c in captures]

    def described(self) -> GraphPool:
        at_end = total(self._now)
        pool = GraphPool(
            self._device.name,
            name_of_pool(self._id) if self._id is not None else "none",
            reserved=total(self._segments),
            segments=len(self._segments),
            most_reserved=max([at_end, *(total(c.segments) for c in self._captures)]),
            at_end=at_end,
            gone=self._gone,
        )
        for c, (graph, blocks) in zip(self._captures, self._blocks, strict=True):
            self._add(c, graph, blocks)
            pool.graphs.append(graph)
        pool.grew_outside = pool.reserved - sum(g.grew for g in pool.graphs)
        self._share(pool)
        self._outside(pool)
        streams = {g.stream for g in pool.graphs if g.requests}
        if len(streams) > 1:
            pool.notes.append(
                f"captured on {len(streams)} streams: what one capture lets go of is not for those "
                "on another stream"
            )
        return pool

    def _blocks_of(self, c: WatchedCapture) -> list[AllocatorBlock]:
        """Blocks that belong to the graph of a capture."""
        blocks = self._device.blocks
        begin, end = (bisect.bisect_left(blocks, n, key=lambda b: b.mark) for n in (c.begin, c.end))
        return [b for b in blocks[begin:end] if has(c.segments, b.address)]

    def _is_mine(self, block: AllocatorBlock, begins: Sequence[int]) -> bool:
        """Tells whether a block was in the pool: its segment may have been another one's before."""
        at = bisect.bisect_right(begins, block.mark) - 1
        if at >= 0 and block.mark < self._captures[at].end:
            return has(self._captures[at].segments, block.address)
        # In between it was in the pool if its segment was when the next capture began.
        after = self._captures[at + 1].found if at + 1 < len(begins) else self._segments
        return has(after, block.address)

    def _find_workspaces(self) -> set[int]:
        """``id`` of blocks that are taken for cuBLAS's: the first of such a size on each stream,
        for autograd's own threads, which have handles of their own and no Python, and for all
        others."""
        found: dict[tuple[int, int, bool], int] = {}
        for b in self._mine:
            if b.requested in self._device.workspaces and not self._is_held(b) and self._lives(b):
                found.setdefault((b.stream, b.requested, where(b.frames).line is None), id(b))
        return set(found.values())

    def _add(self, c: WatchedCapture, g: GraphCapture, blocks: Sequence[AllocatorBlock]) -> None:
        g.grew = total(c.segments) - total(c.found)
        g.requests = len(blocks)
        g.asked = sum(b.requested for b in blocks)
        if blocks:
            g.stream = blocks[0].stream
        g.used = total(merged(_range(b) for b in blocks))
        fates = {id(b): self._fate(b, c.end) for b in blocks}
        left = [b for b in blocks if fates[id(b)].stays]
        g.stays = sum(b.size for b in left)
        at_peak = _most_at_once(blocks)
        g.peak = sum(b.size for b in at_peak)
        g.rounding = g.peak - sum(b.requested for b in at_peak)
        g.at_peak = capture_rows(at_peak, lambda b: fates[id(b)])
        g.left = capture_rows(left, lambda b: fates[id(b)])

    def _fate(self, block: AllocatorBlock, end: float) -> Fate:
        freed = block.freed_after
        if freed is not None and freed < end:
            return Fate.SCRATCH
        if freed is not None and (self._instant is None or freed < self._instant):
            return Fate.GIVEN_BACK
        if self._is_held(block):
            return Fate.HELD
        if id(block) in self._workspaces:
            return Fate.WORKSPACE
        return Fate.UNEXPLAINED if self._instant is None else Fate.KEPT

    def _is_held(self, block: AllocatorBlock) -> bool:
        """Tells whether a tensor in Python refers to a block; False for an earlier instant."""
        return self._instant is None and block.first_of(self._device.held) is not None

    def _share(self, pool: GraphPool) -> None:
        uses = {
            g.number: clipped(merged(map(_range, blocks)), self._segments)
            for g, blocks in self._blocks
            if not g.deleted
        }
        found = shares(uses)
        pool.shares = [SharedBytes(n, numbers) for numbers, n in found.most_common(_SETS)]
        pool.other_shares = found.total() - sum(s.nbytes for s in pool.shares)
        for g in pool.graphs:
            g.alone = found.get((g.number,), 0)

    def _outside(self, pool: GraphPool) -> None:
        captured = {id(b) for _, blocks in self._blocks for b in blocks}
        there = self._mine if self._instant is not None else self._device.history.live
        there = [b for b in there if has(self._segments, b.address) and self._lives(b)]
        outside = [b for b in there if id(b) not in captured]
        pool.outside = capture_rows(outside, lambda b: self._fate(b, -1))
        of_graphs = [b for g, blocks in self._blocks if not g.deleted for b in blocks]
        either = clipped(merged(map(_range, [*of_graphs, *outside])), self._segments)
        used = sum(s.nbytes for s in pool.shares) + pool.other_shares
        pool.live_outside = total(either) - used
        pool.unused = pool.reserved - total(either)

    def _lives(self, block: AllocatorBlock) -> bool:
        """Tells whether a block is there at the instant of the pool."""
        if self._instant is None:
            return block.ended is None
        freed = block.freed_after
        return block.mark < self._instant and (freed is None or freed >= self._instant)


_SETS = 100
"""Combinations of graphs that are told apart, for each pool."""


def _range(block: AllocatorBlock) -> Range:
    return block.address, block.address + block.size


def _most_at_once(blocks: Sequence[AllocatorBlock]) -> list[AllocatorBlock]:
    """Blocks of one capture, given in order, that were live at its peak of bytes."""
    steps = [(b.event, b.size) for b in blocks]
    steps += [(b.ended, -b.size) for b in blocks if b.ended is not None]
    steps.sort(key=lambda step: (step[0], step[1] < 0))
    sums = list(itertools.accumulate(size for _, size in steps))
    at = steps[sums.index(max(sums))][0] if steps else 0
    return [b for b in blocks if b.event <= at and (b.ended is None or b.ended > at)]


def capture_rows(
    blocks: Iterable[AllocatorBlock], fate: Callable[[AllocatorBlock], Fate]
) -> list[Held]:
    """Rows of blocks, one for each fate and place in the program, most bytes first."""

    def row_of(b: AllocatorBlock) -> Held:
        at = where(b.frames)
        return Held(
            Category.ALLOCATED,
            nbytes=0,
            count=0,
            modules=at.module_path,
            frame=source_of(at.line),
            nodes=at.nodes,
            compiled=at.generated is not None,
            fate=fate(b),
        )

    return rows_of(blocks, row_of)

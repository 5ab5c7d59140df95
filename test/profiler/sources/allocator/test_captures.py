"""What graphs hold, from hand-written histories: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memprof.profiler.model import Fate, GraphCapture, GraphPool
from memprof.profiler.sources.allocator.captures import Device, WatchedCapture, describe
from memprof.profiler.sources.allocator.history import AllocatorBlock, AllocatorHistory
from memprof.profiler.sources.allocator.marks import Mark, Phase

MIB = 1 << 20
POOL = (0, 1)
BASE = 1 << 40


class History:
    """An allocator's history as it is written, and the captures in it."""

    def __init__(self) -> None:
        self.blocks: list[AllocatorBlock] = []
        self.replay = AllocatorHistory(on_block=self.blocks.append)
        self.marks = [Mark(Phase.FORWARD, 0)]
        self.captures: list[WatchedCapture] = []
        self.segments: list[dict[str, Any]] = []
        self._asked = self._let_go = 0

    def segment(self, size: int, at: int, pool: tuple[int, int] = POOL) -> None:
        self._feed("segment_alloc", at, size)
        self.segments.append({"address": BASE + at, "total_size": size, "segment_pool_id": pool})
        self.replay.assign_pools(self.segments)

    def alloc(self, size: int, at: int, line: int = 1) -> None:
        self._asked += 1
        frames = [{"filename": "/engine.py", "line": line, "name": "run"}] if line else []
        self._feed("alloc", at, size, frames=frames)

    def free(self, at: int) -> None:
        self._let_go += 1
        self._feed("free_requested", at, 0)
        self._feed("free_completed", at, 0)

    def _feed(self, action: str, at: int, size: int, **more: Any) -> None:
        self.replay.feed([{"action": action, "addr": BASE + at, "size": size, **more}], self.marks)

    def mark(self) -> int:
        self.marks.append(Mark(Phase.FORWARD, 0, counts={0: (self._asked, self._let_go)}))
        return len(self.marks) - 1

    def ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple(
            (s["address"], s["address"] + s["total_size"])
            for s in self.segments
            if s["segment_pool_id"] == POOL
        )

    def begin(self) -> None:
        number = len(self.captures) + 1
        graph = GraphCapture(number, start_ns=100 * number, duration_ns=10)
        capture = WatchedCapture(graph, 0, POOL, self.mark(), found=self.ranges())
        self.captures.append(capture)

    def end(self, failed: str = "") -> None:
        self.captures[-1].segments = self.ranges()
        self.captures[-1].end = self.mark()
        self.captures[-1].graph.failed = failed

    def pool(self, held: Sequence[int] = (), workspaces: Sequence[int] = ()) -> GraphPool:
        held = [BASE + at for at in held]
        device = Device("cuda:0", self.replay, self.blocks, held, workspaces)
        (found,) = describe(device, self.captures)
        return found


def fates(graph: GraphCapture) -> list[tuple[Fate, int]]:
    return [(r.fate, r.nbytes // MIB) for r in graph.left]


def test_a_block_is_of_the_capture_in_which_it_was_asked_for() -> None:
    h = History()
    h.begin()
    h.segment(40 * MIB, 0)
    h.alloc(8 * MIB, 0)
    h.alloc(12 * MIB, 8 * MIB)
    h.alloc(20 * MIB, 20 * MIB)
    h.free(0)
    h.end()
    h.free(8 * MIB)  # after it
    h.begin()
    h.alloc(16 * MIB, 0)
    h.free(0)
    h.end()
    pool = h.pool(held=[20 * MIB + 512])  # a view
    first, second = pool.graphs
    assert (first.peak, first.used, first.alone, first.stays) == tuple(
        n * MIB for n in (40, 40, 24, 20)
    )
    assert fates(first) == [(Fate.HELD, 20)]
    at_peak = {r.fate: r.nbytes // MIB for r in first.at_peak}
    assert at_peak == {Fate.HELD: 20, Fate.GIVEN_BACK: 12, Fate.SCRATCH: 8}
    assert (second.grew, second.peak, second.alone) == (0, 16 * MIB, 0)
    assert {s.graphs: s.nbytes // MIB for s in pool.shares} == {(1,): 24, (1, 2): 16}


def test_a_segment_of_another_pool_before_is_not_of_this_one() -> None:
    h = History()
    h.segment(20 * MIB, 0, (0, 0))
    h.alloc(20 * MIB, 0)
    h.free(0)
    h._feed("segment_free", 0, 20 * MIB)
    h.segments.clear()
    h.begin()
    h.segment(20 * MIB, 0)
    h.alloc(20 * MIB, 0)
    h.free(0)
    h.end()
    pool = h.pool()
    assert (pool.graphs[0].requests, pool.graphs[0].used, pool.notes) == (1, 20 * MIB, [])


def test_what_a_pool_had_before_the_session_no_capture_grew() -> None:
    h = History()
    h.segment(20 * MIB, 0)
    h.begin()
    h.segment(12 * MIB, 64 * MIB)
    h.alloc(12 * MIB, 64 * MIB)
    h.end()
    pool = h.pool()
    (graph,) = pool.graphs
    assert (pool.reserved, pool.grew_outside, graph.grew) == (32 * MIB, 20 * MIB, 12 * MIB)


def test_a_workspace_is_the_first_of_its_size_on_each_kind_of_thread() -> None:
    h = History()
    h.begin()
    h.segment(40 * MIB, 0)
    for i, line in enumerate((1, 2, 0)):
        h.alloc(8 * MIB, 8 * MIB * i, line)
    h.end()
    (graph,) = h.pool(workspaces=[8 * MIB]).graphs
    assert fates(graph) == [(Fate.UNEXPLAINED, 8), (Fate.WORKSPACE, 8), (Fate.WORKSPACE, 8)]
    # A tensor that Python holds is none.
    (graph,) = h.pool(held=[0], workspaces=[8 * MIB]).graphs
    assert sorted(fates(graph))[0] == (Fate.HELD, 8)


def test_deleted_graphs_use_nothing_and_a_pool_without_others_is_as_it_was() -> None:
    h = History()
    for size in (20, 16):
        h.begin()
        if size == 20:
            h.segment(20 * MIB, 0)
        h.alloc(size * MIB, 0)
        h.end()
        h.free(0)
    first, second = h.captures
    first.deleted_ns = 150
    pool = h.pool()
    assert [(s.graphs, s.nbytes) for s in pool.shares] == [((2,), 16 * MIB)]
    assert pool.unused == 4 * MIB
    assert not pool.gone
    # WHEN the other one is deleted too, and the memory given back
    second.deleted_ns = 300
    h._feed("segment_free", 0, 20 * MIB)
    pool = h.pool()
    assert (pool.gone, pool.reserved, pool.at_end) == (True, 20 * MIB, 0)
    assert [(s.graphs, s.nbytes) for s in pool.shares] == [((2,), 16 * MIB)]
    assert [fates(g) for g in pool.graphs] == [[], [(Fate.KEPT, 16)]]

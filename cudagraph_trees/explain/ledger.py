"""Everything the manager did, and why.

Replays are counted where they happen, in the node, and become entries only when the
ledger is read: an entry a replay would cost more than the replay.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from memprof.profiler.model import LedgerEntry, LedgerKind, TreeCause, TreeDetail
from memprof.profiler.support.counter import Counter

from ..device.cuda import CudaPool
from ..replay.node import CUDAGraphNode, number_of
from ..replay.path import REPLAYS, TreePath
from ..replay.spec import FunctionSpec

MAX_ENTRIES = 10_000

_RECORDED = Counter()
_FALLEN_BACK = Counter()
_COUNTS = {
    LedgerKind.RECORD: _RECORDED,
    LedgerKind.RERECORD: _RECORDED,
    LedgerKind.SKIP: _FALLEN_BACK,
}
"""Counts, over all managers of this process, that an entry of a kind adds to."""


def count_fallback() -> None:
    """Count a call that runs without a graph since a warm-up or a recording of it has failed."""
    _FALLEN_BACK.tick()


def graphs_so_far() -> tuple[str, str, str]:
    """Notes of the counts of graphs that this process has recorded, of replays, and of calls that
    graph trees served without one: for ``Counter.number_in``. Hot."""
    return _RECORDED.note(), REPLAYS.note(), _FALLEN_BACK.note()


def measure(pool: CudaPool) -> Callable[[], dict[str, int]]:
    """Measure time, and what the pool has from the device, from here on. The result gives both as
    keyword arguments of ``TreeLedger.add``: ns and bytes."""
    start_ns = time.perf_counter_ns()
    reserved = pool.reserved_bytes
    before = reserved()

    def detail() -> dict[str, int]:
        return {
            "duration_ns": time.perf_counter_ns() - start_ns,
            "pool_before": before,
            "pool_after": reserved(),
        }

    return detail


class TreeLedger:
    """The entries of one manager, with ``device`` and the step of ``path``; repeats are counted. At
    most ``MAX_ENTRIES`` different ones."""

    def __init__(self, device: str, path: TreePath) -> None:
        self.device = device
        # Ledgers outlive their managers. A call that was under way when one was shut down has put
        # its node on the path since, with the function and all that it holds.
        self._path = weakref.ref(path)
        self._entries: dict[tuple[object, ...], LedgerEntry] = {}
        # A node may be retired twice: with what it was recorded after, and by itself.
        self._retired: dict[tuple[object, ...], LedgerEntry] = {}
        # A collector run inside the lock may shut the manager down, which writes here.
        self._lock = threading.RLock()

    def add(
        self, kind: LedgerKind, function: FunctionSpec | None, reason: str, **detail: Any
    ) -> None:
        """Write one entry, about ``function`` if it is about one; ``detail`` are other fields of
        ``TreeDetail``. One that differs only in time, step and measurements is a repeat."""
        path = self._path()
        step = 0 if path is None else path.step
        entry = self._entry(function, time.time_ns(), kind, reason, step=step, **detail)
        tree = entry.tree
        assert tree is not None
        key = (kind, tree.function, tree.key, reason, tree.node, tree.parent)
        if kind in _COUNTS:
            _COUNTS[kind].tick()
        with self._lock:
            earlier = self._entries.get(key)
            if earlier is not None:
                assert earlier.tree is not None
                duration = earlier.tree.duration_ns + tree.duration_ns
                tree = dataclasses.replace(earlier.tree, duration_ns=duration)
                self._entries[key] = dataclasses.replace(
                    earlier, count=earlier.count + 1, tree=tree
                )
            elif len(self._entries) < MAX_ENTRIES:
                self._entries[key] = entry

    def retire(self, node: CUDAGraphNode) -> None:
        """Keep what was counted in a node that goes away."""
        with self._lock:
            for e in self._counted(node):
                self._retired[(node.number, e.kind, e.reason)] = e

    def entries(self, nodes: Iterable[CUDAGraphNode] = ()) -> list[LedgerEntry]:
        """All entries by time, with one for the replays of each of ``nodes``."""
        replays = [e for n in nodes for e in self._counted(n)]
        with self._lock:
            out = [*self._entries.values(), *self._retired.values(), *replays]
        return sorted(out, key=lambda e: e.time_ns)

    def _counted(self, node: CUDAGraphNode) -> list[LedgerEntry]:
        """Entries for what the hot path only counts: replays of the node, invalidated outputs."""
        function, at = node.wrapped_function, node.recorded_ns
        where = {"node": node.number, "parent": number_of(node.parent), "step": node.step}
        out = []
        if node.replays:
            kind, marginal, n = LedgerKind.REPLAY, node.marginal_bytes, node.replays
            out.append(self._entry(function, at, kind, "replayed", n, marginal=marginal, **where))
        for i, count in enumerate(node.output_cache.invalidated):
            if count:
                reason = f"output {i} is held beyond its step; its use raises"
                detail = {"cause": TreeCause.HELD, "outputs": function.graph_outputs_of(i), **where}
                kind = LedgerKind.INVALIDATED
                out.append(self._entry(function, at, kind, reason, count, **detail))
        return out

    def _entry(
        self,
        function: FunctionSpec | None,
        time_ns: int,
        kind: LedgerKind,
        reason: str,
        count: int = 1,
        **detail: Any,
    ) -> LedgerEntry:
        graph, label = None, ""
        if function is not None:
            graph = None if function.record is None else function.record.id
            label, detail["key"] = function.label, function.key
        tree = TreeDetail(self.device, label, **detail)
        return LedgerEntry(time_ns, kind, graph, reason, count=count, tree=tree)

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
from dataclasses import dataclass

from memprof.profiler.model import LedgerEntry, LedgerKind, TreeCause, TreeDetail

from ..node import CUDAGraphNode, number_of
from ..path import TreePath
from ..spec import FunctionSpec

MAX_ENTRIES = 10_000


@dataclass(slots=True)
class Measurement:
    """Time and pool size from here to the ``TreeLedger.add`` that gets it.

    Attributes:
        start_ns: ``time.perf_counter_ns()`` at the beginning.
        reserved: says how many bytes the pool has from the system.
        pool_before: what it said at the beginning.
    """

    start_ns: int
    reserved: Callable[[], int]
    pool_before: int

    @staticmethod
    def begin(reserved: Callable[[], int]) -> Measurement:
        """The measurement that begins now."""
        return Measurement(time.perf_counter_ns(), reserved, reserved())


@dataclass(frozen=True, slots=True)
class TreeEvent:
    """What happened, for the ledger, where that is written by somebody else.

    Attributes:
        kind, function, reason, cause, outputs: as of ``TreeLedger.add``.
    """

    kind: LedgerKind
    function: FunctionSpec
    reason: str
    cause: TreeCause | None = None
    outputs: tuple[int, ...] = ()


class TreeLedger:
    """The entries of one manager; repeats are counted. At most ``MAX_ENTRIES`` different ones.

    Attributes:
        device: written to each entry, as is the step of ``path``.
        dropped: entries that did not fit.
    """

    def __init__(self, device: str, path: TreePath) -> None:
        self.device = device
        self.dropped = 0
        # Ledgers outlive their managers. A call that was under way when one was shut down has put
        # its node on the path since, with the function and all that it holds.
        self._path = weakref.ref(path)
        self._entries: dict[tuple[object, ...], LedgerEntry] = {}
        self._replayed: dict[tuple[object, ...], LedgerEntry] = {}
        # A collector run inside the lock may shut the manager down, which writes here.
        self._lock = threading.RLock()

    def add(
        self,
        kind: LedgerKind,
        function: FunctionSpec | None,
        reason: str,
        *,
        node: int | None = None,
        parent: int | None = None,
        measured: Measurement | None = None,
        marginal: int = 0,
        cause: TreeCause | None = None,
        inputs: tuple[int, ...] = (),
        nbytes: int = 0,
        outputs: tuple[int, ...] = (),
    ) -> None:
        """Write one entry. One that differs only in time, step and measurements is a repeat."""
        record = None if function is None or function.record is None else function.record.id
        label = "" if function is None else function.label
        key = (kind, label, () if function is None else function.key, reason, node, parent)
        duration, before, after = 0, -1, -1
        if measured is not None:
            duration = time.perf_counter_ns() - measured.start_ns
            before, after = measured.pool_before, measured.reserved()
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                assert known.tree is not None
                self._entries[key] = dataclasses.replace(
                    known,
                    count=known.count + 1,
                    tree=dataclasses.replace(
                        known.tree, duration_ns=known.tree.duration_ns + duration
                    ),
                )
                return
            if len(self._entries) >= MAX_ENTRIES:
                self.dropped += 1
                return
            path = self._path()
            entry = LedgerEntry(
                time.time_ns(),
                kind,
                record,
                reason,
                tree=TreeDetail(
                    device=self.device,
                    function=label,
                    key=() if function is None else function.key,
                    node=node,
                    parent=parent,
                    step=0 if path is None else path.step,
                    duration_ns=duration,
                    pool_before=before,
                    pool_after=after,
                    marginal=marginal,
                    cause=cause,
                    inputs=inputs,
                    nbytes=nbytes,
                    outputs=outputs,
                ),
            )
            self._entries[key] = entry

    def retire(self, node: CUDAGraphNode) -> None:
        """Keep what was counted in a node that goes away."""
        with self._lock:
            for e in self._counted(node):
                self._replayed[(node.number, e.kind, e.reason)] = e

    def entries(self, nodes: Iterable[CUDAGraphNode] = ()) -> list[LedgerEntry]:
        """All entries by time, with one for the replays of each of ``nodes``."""
        replays = [e for n in nodes for e in self._counted(n)]
        with self._lock:
            out = [*self._entries.values(), *self._replayed.values(), *replays]
        return sorted(out, key=lambda e: e.time_ns)

    def _counted(self, node: CUDAGraphNode) -> list[LedgerEntry]:
        """What the hot path counts in the node instead of writing it down."""
        out = []
        if node.replays:
            out.append(self._entry_of(node, LedgerKind.REPLAY, "replayed", node.replays))
        for i, count in enumerate(node.output_cache.invalidated):
            if not count:
                continue
            reason = f"output {i} is held beyond its step; its use raises"
            cause, outputs = TreeCause.HELD, node.wrapped_function.graph_outputs_of(i)
            kind = LedgerKind.INVALIDATED
            out.append(self._entry_of(node, kind, reason, count, cause, outputs))
        return out

    def _entry_of(
        self,
        node: CUDAGraphNode,
        kind: LedgerKind,
        reason: str,
        count: int,
        cause: TreeCause | None = None,
        outputs: tuple[int, ...] = (),
    ) -> LedgerEntry:
        function, parent = node.wrapped_function, node.parent
        return LedgerEntry(
            node.recorded_ns,
            kind,
            None if function.record is None else function.record.id,
            reason,
            count=count,
            tree=TreeDetail(
                device=self.device,
                function=function.label,
                key=function.key,
                node=node.number,
                parent=number_of(parent),
                step=node.step,
                marginal=node.marginal_bytes if kind is LedgerKind.REPLAY else 0,
                cause=cause,
                outputs=outputs,
            ),
        )

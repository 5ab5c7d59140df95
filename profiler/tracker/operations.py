"""Named operations: what runs in which thread and task, nested, with the memory around it.

Note [Memory around an operation]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Cheap figures are read at both edges of every operation, some microseconds together: resident
bytes, and each allocator's bytes and highest mark. Live tensors must be looked for, which takes
some 0.1 ms, so they are counted only as long as that took less than ``DETAIL_SHARE`` of the
time; where it was not done the figure is unknown, never guessed.

The peak inside: allocators and the system keep one highest mark for the whole process, and
resetting it would change what the user's own code reads from it. If the mark rises inside an
operation, its new value *is* the peak. If not, the peak is somewhere between what was seen (at
the edges, by snapshots, by operations inside) and the mark, and what was seen is noted, not exact.

The operation in which a tensor was made is known where exactly one operation was the innermost
one all the time from one look for tensors to the next, and unknown otherwise.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Container
from contextvars import ContextVar

from memprof.profiler.model import DeviceSummary, OperationSummary

from .lanes import Lanes, current_task
from .memory import Accelerators, ProcessMemory
from .rows import OperationRow
from .tensors import LiveTensors
from .thinning import operations_to_drop

MAX_NAMES = 2_000
"""Distinct places in the tree of operations; further ones are counted together."""
OTHER = "(other operations)"
DETAIL_SHARE = 0.002
_DETAIL_BURST_NS = 20_000_000
_SAME_INSTANT_NS = 20_000

_clock = time.perf_counter_ns


class Operation:
    """One invocation, running or ended; ``owner`` is who ends it, None when that is done."""

    __slots__ = (
        "depth",
        "end_ns",
        "failed",
        "lane",
        "log",
        "memory",
        "number",
        "owner",
        "parent",
        "start_ns",
        "summary",
        "task",
        "tensors_after",
        "tensors_before",
    )

    def __init__(
        self,
        log: OperationLog,
        owner: object,
        number: int,
        summary: int,
        lane: int,
        parent: Operation | None,
    ) -> None:
        self.log = log
        self.owner: object | None = owner
        self.number = number
        self.summary = summary
        self.lane = lane
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.task = 0
        self.start_ns = 0
        self.end_ns = -1
        self.failed = False
        self.tensors_before = self.tensors_after = (-1, -1)
        # device: [before, after, highest seen, exact, mark before]
        self.memory: dict[str, list[int]] = {}

    def saw(self, device: str, nbytes: int) -> None:
        """Note that ``device`` had this many bytes in use at an instant inside."""
        figures = self.memory.get(device)
        if figures is not None and nbytes > figures[2]:
            figures[2] = nbytes

    def row(self, kept: Container[int] | None = None) -> OperationRow:
        """As it is written; the parent is the nearest one of ``kept``, by default any."""
        parent = self.parent
        while parent is not None and kept is not None and parent.number not in kept:
            parent = parent.parent
        return OperationRow(
            self.number,
            self.summary,
            self.lane,
            parent.number if parent is not None else -1,
            self.start_ns,
            self.end_ns,
            *self.tensors_before,
            *self.tensors_after,
            {d: (f[0], f[1], f[2], bool(f[3])) for d, f in self.memory.items()},
            self.failed,
        )


CURRENT: ContextVar[Operation | None] = ContextVar("memprof_operation", default=None)
"""The innermost operation that runs in this thread or task."""


class OperationLog:
    """All operations of a tracker.

    Args:
        tensors, process, accelerators: the sources.
        limit: invocations kept one by one.

    Attributes:
        enabled: whether operations that begin are tracked.
        lanes: of threads and tasks.
        seen, dropped: invocations so far, and those that are no longer kept.
        cost_ns: time that the edges took.
    """

    def __init__(
        self,
        tensors: LiveTensors,
        process: ProcessMemory,
        accelerators: Accelerators,
        limit: int,
    ) -> None:
        self.enabled = True
        self.lanes = Lanes()
        self._sums: list[_Sums] = []
        self.seen = 0
        self.dropped = 0
        self.cost_ns = 0
        self._tensors = tensors
        self._process = process
        self._accelerators = accelerators
        self._limit = limit
        self._lock = threading.RLock()
        self._rows: list[Operation] = []
        self._running: dict[int, Operation] = {}
        self._ended: deque[Operation] = deque(maxlen=max(limit, 1))
        self._changed: set[int] = set()
        self._by_place: dict[tuple[int, str], int] = {}
        self._allowance = float(_DETAIL_BURST_NS)
        self._allowed_at = _clock()
        self._edges = 0
        self._edges_at_look = 0
        self._reading: dict[str, tuple[int, int]] = {}
        self._read_at = 0

    # --- the edges ------------------------------------------------------------------------

    def begin(self, owner: object, name: str) -> Operation | None:
        """Start operation ``name`` on this thread and task; None while not enabled."""
        if not self.enabled:
            return None
        entered = _clock()
        parent = CURRENT.get()
        if parent is not None and parent.log is not self:
            parent = None  # of a tracker that has stopped, or of the process before a fork
        counted = self._count_tensors(entered)
        with self._lock:
            task = current_task()
            operation = Operation(
                self,
                owner,
                self.seen,
                self._place(parent.summary if parent is not None else -1, name),
                parent.lane
                if task and parent is not None and parent.task == task
                else self.lanes.take(task),
                parent,
            )
            operation.task = task
            operation.start_ns = entered
            self.seen += 1
            self._running[operation.number] = operation
            self._rows.append(operation)
            self._edge(counted)
            if len(self._rows) > 4 * self._limit + 64:
                self._thin()  # the tracker's thread, which does it, does not get its turn
        operation.tensors_before = counted
        for device, (now, mark) in self._in_use().items():
            operation.memory[device] = [now, now, now, 0, mark]
        CURRENT.set(operation)
        operation.start_ns = _clock()
        self.cost_ns += operation.start_ns - entered
        return operation

    def end(self, operation: Operation, failed: bool) -> None:
        """End it."""
        operation.end_ns = left = _clock()
        if operation.owner is None:
            return
        operation.owner = None
        operation.failed = failed
        for device, (now, mark) in self._in_use().items():
            figures = operation.memory.get(device)
            if figures is None:  # it was not in use before
                figures = operation.memory[device] = [0, 0, 0, 0, 0]
            self._close(figures, now, mark)
        operation.tensors_after = self._count_tensors(left)
        parent = operation.parent
        if parent is not None and parent.owner is not None:
            for device, figures in operation.memory.items():
                parent.saw(device, figures[2])
        with self._lock:
            self._edge(operation.tensors_after)
            self._running.pop(operation.number, None)
            if self._limit:
                self._ended.append(operation)
            self._sum_up(operation)
            if operation.task and (parent is None or parent.task != operation.task):
                self.lanes.give_back(operation.lane)
            operation.task = 0
        CURRENT.set(parent)
        self.cost_ns += _clock() - left

    @staticmethod
    def _close(figures: list[int], now: int, mark: int) -> None:
        figures[1] = now
        figures[2] = max(figures[2], now)
        if mark > figures[4]:
            figures[2], figures[3] = max(mark, figures[2]), 1
        elif mark == figures[4]:
            figures[3] = int(figures[2] >= mark)

    def _in_use(self) -> dict[str, tuple[int, int]]:
        """By device: bytes in use and the highest mark. Edges that follow one another at once
        (a parent begins and its first child, one ends and the next begins) share a reading."""
        now = _clock()
        if now - self._read_at < _SAME_INSTANT_NS:
            return self._reading
        found = self._accelerators.brief()
        resident = self._process.resident()
        if resident is not None:
            found["cpu"] = (resident, self._process.highest() or resident)
        self._reading, self._read_at = found, now
        return found

    def _count_tensors(self, now: int) -> tuple[int, int]:
        """Bytes and number of live tensors, (-1, -1) where looking would cost too much."""
        self._allowance = min(
            self._allowance + (now - self._allowed_at) * DETAIL_SHARE, float(_DETAIL_BURST_NS)
        )
        self._allowed_at = now
        if self._allowance <= 0 or not self._tensors.lock.acquire(blocking=False):
            return -1, -1
        try:
            if not self._tensors.look(self.made_in()):
                self._edges_at_look = -1
                return -1, -1
            return self._tensors.sums()
        finally:
            self._tensors.lock.release()
            self._allowance -= _clock() - now

    def _edge(self, counted: tuple[int, int]) -> None:
        """An operation begins or ends, right after tensors were looked for or not."""
        self._edges += 1
        if counted[0] >= 0 and self._edges_at_look == self._edges - 1:
            self._edges_at_look = self._edges

    def made_in(self) -> int:
        """Summary of the operation in which what is found now was made, -1 if that is not
        known; see Note [Memory around an operation]. To be called right before a look."""
        with self._lock:
            known = self._edges == self._edges_at_look
            self._edges_at_look = self._edges
            lanes = {o.lane for o in self._running.values()}
            if not known or len(lanes) != 1:
                return -1
            return max(self._running.values(), key=lambda o: (o.depth, o.number)).summary

    # --- places ---------------------------------------------------------------------------

    def _place(self, parent: int, name: str) -> int:
        place = self._by_place.get((parent, name))
        if place is None:
            if len(self._sums) >= MAX_NAMES:
                parent, name = -1, OTHER
                place = self._by_place.get((parent, name))
            if place is None:
                place = self._by_place[parent, name] = len(self._sums)
                self._sums.append(_Sums(name, parent))
                self._changed.add(place)
        return place

    def forked(self) -> None:
        """In a forked child: operations that run can be ended, nothing begins."""
        self.enabled = False
        self._lock = threading.RLock()

    # --- what is kept ---------------------------------------------------------------------

    def _sum_up(self, o: Operation) -> None:
        self._sums[o.summary].add(o)
        self._changed.add(o.summary)

    def thin(self) -> None:
        """Drop what is too much, if it is much."""
        with self._lock:
            if len(self._rows) > self._limit + self._limit // 8 + 8:
                self._thin()

    def _thin(self) -> None:
        drop = operations_to_drop(self._rows, self._limit)
        self.dropped += len(drop)
        self._rows = [o for i, o in enumerate(self._rows) if i not in drop]

    # --- asking ---------------------------------------------------------------------------

    def path(self, summary: int) -> str:
        """Names from the root to a summary, joined by ``/``; "" for -1."""
        names: list[str] = []
        while summary >= 0:
            s = self._sums[summary]
            names.append(s.name)
            summary = s.parent
        return "/".join(reversed(names))

    def running(self) -> list[Operation]:
        """Operations that have not ended, oldest first."""
        with self._lock:
            return list(self._running.values())

    def rows(self) -> list[OperationRow]:
        """The invocations that are kept, in order of start."""
        with self._lock:
            operations = list(self._rows)
        kept = {o.number for o in operations}
        rows: list[OperationRow] = []
        # All at once would hold up operations that begin or end meanwhile, some 0.1 s.
        for i in range(0, len(operations), 500):
            with self._lock:
                rows += [o.row(kept) for o in operations[i : i + 500]]
        return rows

    def summaries(self) -> list[OperationSummary]:
        """The tree of operations, as in the record."""
        with self._lock:
            return [s.summary() for s in self._sums]

    def news(self, limit: int) -> tuple[list[OperationRow], dict[int, OperationSummary]]:
        """What changed since it was last asked: rows, at most ``limit`` of those that have
        ended, and summaries. Ask again until there is nothing more."""
        with self._lock:
            rows: list[OperationRow] = []
            while self._ended and len(rows) < limit:
                rows.append(self._ended.popleft().row())
            changed = {i: self._sums[i].summary() for i in sorted(self._changed)[:limit]}
            self._changed.difference_update(changed)
            return rows, changed


class _Sums:
    """What adds up to an ``OperationSummary``."""

    __slots__ = (
        "count",
        "devices",
        "failed",
        "max_ns",
        "measured",
        "min_ns",
        "name",
        "nbytes",
        "parent",
        "tensors",
        "total_ns",
    )

    def __init__(self, name: str, parent: int) -> None:
        self.name = name
        self.parent = parent
        self.count = self.failed = self.total_ns = self.max_ns = self.min_ns = 0
        self.nbytes = self.tensors = self.measured = 0
        # device: [total delta, highest delta, highest peak, measured]
        self.devices: dict[str, list[int]] = {}

    def add(self, o: Operation) -> None:
        """Add an invocation that has ended."""
        took = o.end_ns - o.start_ns
        self.min_ns = min(self.min_ns, took) if self.count else took
        self.max_ns = max(self.max_ns, took)
        self.total_ns += took
        self.count += 1
        self.failed += o.failed
        if o.tensors_before[0] >= 0 and o.tensors_after[0] >= 0:
            self.nbytes += o.tensors_after[0] - o.tensors_before[0]
            self.tensors += o.tensors_after[1] - o.tensors_before[1]
            self.measured += 1
        for device, (before, after, peak, _, _) in o.memory.items():
            delta = after - before
            sums = self.devices.get(device)
            if sums is None:
                self.devices[device] = [delta, delta, peak, 1]
                continue
            sums[0] += delta
            sums[1] = max(sums[1], delta)
            sums[2] = max(sums[2], peak)
            sums[3] += 1

    def summary(self) -> OperationSummary:
        """As it is written."""
        return OperationSummary(
            name=self.name,
            parent=self.parent,
            count=self.count,
            failed=self.failed,
            total_ns=self.total_ns,
            max_ns=self.max_ns,
            min_ns=self.min_ns,
            tensor_bytes_delta=self.nbytes,
            tensors_delta=self.tensors,
            tensors_measured=self.measured,
            devices={name: DeviceSummary(*sums) for name, sums in self.devices.items()},
        )

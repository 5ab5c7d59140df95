"""Named operations: what runs in which thread and task, nested, with the memory around it.

Note [Memory around an operation]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Looked at are live tensors, which takes 13 µs, and some 0.1 ms where caches are cold; resident
bytes; each allocator's bytes and highest mark. It is done at both edges of an operation, unless one
of the same name was looked at less than ``EVERY_NS`` before: in a loop of very short operations
looks would take longer than they do. Where it was not done the figure is unknown, never guessed,
and sums say how many invocations are in them.

The peak inside: allocators and the system keep one highest mark for the whole process, and
resetting it would change what the user's own code reads from it. If the mark rises inside an
operation, its new value *is* the peak. If not, the peak is somewhere between what was seen (at
the edges, by snapshots, by operations inside) and the mark, and what was seen is noted, not exact.

A tensor was made in the first operation that ends with figures and had begun before the tensor was
found: the innermost, where other threads run none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from heapq import nlargest

from memprof.profiler.model import MemoryColumns, OperationColumns, OperationSummary, TensorInfo
from memprof.profiler.model.tracker import MAX_NAMES, path_of
from memprof.profiler.sources.allocator._torch_compat import without_torch_function
from memprof.profiler.support.process_hooks import ForkSafeLock

from . import naming, sources
from .places import Counted, Lanes, OperationTree, current_task
from .settings import TrackerSettings
from .tensors import LiveTensors, TensorStorage

EVERY_NS = 10_000_000
"""Nanoseconds between two operations of a name that are looked at."""

LOCK_WAIT_S = 0.05
"""Seconds that an edge waits at most for the thread that takes a snapshot."""

MAX_LEFT = 5
"""Tensors, of those that an operation made and left alive, that are described at most."""

_UNKNOWN: Counted = (-1, -1)

Reading = dict[str, tuple[int, int]]
"""By device: bytes in use and the highest mark."""


@dataclass(slots=True, eq=False)
class Operation:
    """One invocation, running or ended.

    Attributes:
        owner: who ends it, None when that is done.
        number, summary: in order of start, and its place in the tree.
        lane, task: where it runs; identity of its asyncio task, 0 for none.
        looked: whether what was in use when it began is known.
        storages_before: storages that had been found when it began.
        memory: by device bytes before, after, highest seen, whether that is exact, and the mark
            before.
    """

    log: OperationLog
    owner: object | None
    name: str
    parent: Operation | None
    start_ns: int
    number: int
    summary: int
    lane: int
    task: int
    end_ns: int = -1
    failed: bool = False
    tensors_before: Counted = _UNKNOWN
    tensors_after: Counted = _UNKNOWN
    looked: bool = False
    storages_before: int = 0
    memory: dict[str, list[int]] = field(default_factory=dict)

    def saw(self, device: str, nbytes: int) -> None:
        """Note that ``device`` had this many bytes in use at an instant inside."""
        figures = self.memory.get(device)
        if figures is not None and nbytes > figures[2]:
            figures[2] = nbytes

    def add_to(self, columns: OperationColumns, position: Mapping[int, int]) -> None:
        """Add it to columns; its parent is the nearest one that has a position, by number."""
        at, parent = len(columns), self.parent
        while parent is not None and parent.number not in position:
            parent = parent.parent
        columns.summary.append(self.summary)
        columns.lane.append(self.lane)
        columns.parent.append(-1 if parent is None else position[parent.number])
        columns.start_ns.append(self.start_ns)
        columns.end_ns.append(self.end_ns)
        columns.tensor_bytes_before.append(self.tensors_before[0])
        columns.tensors_before.append(self.tensors_before[1])
        columns.tensor_bytes_after.append(self.tensors_after[0])
        columns.tensors_after.append(self.tensors_after[1])
        columns.failed.append(self.failed)
        for device in self.memory:
            if device not in columns.memory:
                columns.memory[device] = MemoryColumns(
                    before=[-1] * at,
                    after=[-1] * at,
                    peak=[-1] * at,
                    exact=[False] * at,
                )
        for device, known in columns.memory.items():
            figures = self.memory.get(device, _UNKNOWN_MEMORY)
            known.before.append(figures[0])
            known.after.append(figures[1])
            known.peak.append(figures[2])
            known.exact.append(bool(figures[3]))


_UNKNOWN_MEMORY = [-1, -1, -1, 0]

CURRENT: ContextVar[Operation | None] = ContextVar("memprof_operation", default=None)
"""The innermost operation that runs in this thread or task."""


class OperationLog:
    """All operations of a tracker. What goes wrong at an edge is told to ``report``, and nothing of
    it reaches the user's code.

    Attributes:
        enabled: whether operations that begin are tracked.
        seen, dropped: invocations, and those of them that are no longer kept.
    """

    def __init__(
        self,
        tensors: LiveTensors,
        settings: TrackerSettings,
        clock: Callable[[], int],
        report: Callable[[str], None],
    ) -> None:
        self.tensors = tensors
        self.process = sources.ProcessMemory()
        self.clock = clock
        self.report = report
        self.enabled = True
        self.lanes = Lanes()
        self.dropped = 0
        self._limit = settings.max_operations
        self._left = min(settings.largest, MAX_LEFT)
        self._looked_ns: dict[str, int] = {}
        # What is below belongs to who holds the lock.
        self._lock = ForkSafeLock()
        self._tree = OperationTree()
        self.seen = 0
        self._rows: list[Operation] = []
        self._running: dict[int, Operation] = {}

    # --- the edges ------------------------------------------------------------------------

    def begin(self, owner: object, name: str) -> Operation | None:
        """Start operation ``name`` on this thread and task; None while not enabled, and if it
        cannot be tracked."""
        if not self.enabled:
            return None
        try:
            return self._begin(owner, name)
        except Exception as e:
            self._failed(e)
            return None

    def end(self, operation: Operation, failed: bool) -> None:
        try:
            self._end(operation, failed)
        except Exception as e:
            CURRENT.set(operation.parent)
            self._failed(e)

    def _failed(self, e: Exception) -> None:
        self.report(f"the tracker failed: {type(e).__name__}: {e}")

    def _begin(self, owner: object, name: str) -> Operation:
        entered = self.clock()
        parent = CURRENT.get()
        if parent is not None and parent.log is not self:
            parent = None  # of a tracker that has stopped, or of the process before a fork
        task = current_task()
        tensors, reading = _UNKNOWN, None
        last = self._looked_ns.get(name)
        if last is None or entered - last >= EVERY_NS:
            if len(self._looked_ns) > MAX_NAMES:
                self._looked_ns.clear()
            self._looked_ns[name] = entered
            tensors, reading = self._look()
        with self._lock:
            inside = task and parent is not None and parent.task == task
            operation = Operation(
                log=self,
                owner=owner,
                name=name,
                parent=parent,
                start_ns=entered,
                number=self.seen,
                summary=self._tree.place(parent.summary if parent is not None else -1, name),
                lane=parent.lane if inside and parent is not None else self.lanes.take(task),
                task=task,
                tensors_before=tensors,
                looked=reading is not None,
                storages_before=self.tensors.storages_seen,
            )
            for device, (now, mark) in (reading or {}).items():
                operation.memory[device] = [now, now, now, 0, mark]
            self.seen += 1
            self._running[operation.number] = operation
            self._rows.append(operation)
            if len(self._rows) > self._limit + self._limit // 4 + 64:
                self.thin()
        CURRENT.set(operation)
        operation.start_ns = self.clock()
        return operation

    def _end(self, operation: Operation, failed: bool) -> None:
        entered = self.clock()
        if operation.owner is None:
            return
        operation.owner = None
        operation.failed = failed
        reading = None
        if operation.looked:
            counted, reading = self._look()
            if operation.tensors_before != _UNKNOWN and counted != _UNKNOWN:
                operation.tensors_after = counted
                self._keep_left(operation)
        CURRENT.set(operation.parent)
        with self._lock:
            operation.end_ns = entered
            self._has_ended(operation, reading)

    def _look(self) -> tuple[Counted, Reading | None]:
        """Live tensors and bytes in use now."""
        counted, reading = _UNKNOWN, None
        try:
            counted, reading = self._count_tensors(), self._in_use()
        except Exception as e:
            self._failed(e)
        return counted, reading

    def _keep_left(self, operation: Operation) -> None:
        """Note the tensors that an operation made and left alive, where no invocation before it
        left more: after the first few there is seldom something to describe."""
        try:
            made = self.tensors.made_since(operation.storages_before)
            for storage in made:
                if storage.operation < 0:
                    storage.operation = operation.summary
            nbytes = sum(s.nbytes for s in made)
            sums = self._tree.sums[operation.summary]
            if nbytes > sums.left_bytes:
                largest = nlargest(self._left, made, key=lambda s: s.nbytes)
                described = tuple(self.described(s) for s in largest)
                with self._lock:
                    if nbytes > sums.left_bytes:
                        sums.left_bytes, sums.left = nbytes, described
        except Exception as e:
            self._failed(e)

    def _in_use(self) -> Reading:
        found = sources.allocated_and_highest()
        if (resident := self.process.resident()) is not None:
            found["cpu"] = resident
        return found

    def _count_tensors(self) -> Counted:
        tensors = self.tensors
        if not tensors.lock.acquire(timeout=LOCK_WAIT_S):
            return _UNKNOWN
        try:
            return tensors.sums() if tensors.look() else _UNKNOWN
        finally:
            tensors.lock.release()

    def _has_ended(self, operation: Operation, reading: Reading | None) -> None:
        if reading is None:
            operation.memory = {}
        for device, (now, mark) in (reading or {}).items():
            figures = operation.memory.get(device)
            if figures is None:  # it was not in use before
                figures = operation.memory[device] = [0, 0, 0, 0, 0]
            figures[1] = now
            figures[2] = max(figures[2], now)
            if mark > figures[4]:
                figures[2], figures[3] = max(mark, figures[2]), 1
            elif mark == figures[4]:
                figures[3] = int(figures[2] >= mark)
        parent = operation.parent
        if operation.task and (parent is None or parent.task != operation.task):
            self.lanes.give_back(operation.lane)
        operation.task = 0
        if parent is not None and parent.number in self._running:
            for device, figures in operation.memory.items():
                parent.saw(device, figures[2])
        self._running.pop(operation.number, None)
        self._tree.add(
            operation.summary,
            operation.end_ns - operation.start_ns,
            operation.failed,
            operation.tensors_before,
            operation.tensors_after,
            operation.memory,
        )

    def thin(self) -> None:
        """Drop the oldest operations that have ended, beyond the limit of those to keep."""
        with self._lock:
            excess = max(len(self._rows) - self._limit, 0)
            ended = [o for o in self._rows if o.end_ns >= 0]
            gone = set(ended[:excess])
            self.dropped += len(gone)
            self._rows = [o for o in self._rows if o not in gone]

    # --- asking ---------------------------------------------------------------------------

    def path(self, summary: int) -> str:
        return path_of(self._tree.sums, summary)

    def described(self, storage: TensorStorage) -> TensorInfo:
        """A tensor of ``storage``, with the operation that made it."""
        found = TensorInfo(
            (),
            "",
            storage.device,
            storage.nbytes,
            storage.tensors,
            operation=self.path(storage.operation),
        )
        tensor = storage.tensor()
        if tensor is None:
            return found
        try:
            found = dataclasses.replace(found, **dataclasses.asdict(naming.origin(tensor)))
        except Exception as e:
            self.report(f"naming a tensor failed: {type(e).__name__}: {e}")
        try:
            with without_torch_function():
                return dataclasses.replace(
                    found,
                    shape=tuple(map(int, tensor.shape)),
                    dtype=str(tensor.dtype),
                    requires_grad=bool(tensor.requires_grad),
                )
        except Exception as e:  # a subclass has properties of its own
            self.report(f"describing a tensor failed: {type(e).__name__}: {e}")
            return found

    def running(self) -> list[Operation]:
        """Operations that have not ended, oldest first."""
        with self._lock:
            return list(self._running.values())

    def columns(self) -> OperationColumns:
        """All invocations that are kept, in order of their start."""
        with self._lock:
            operations = sorted(self._rows, key=lambda o: (o.start_ns, o.number))
        position = {o.number: i for i, o in enumerate(operations)}
        found = OperationColumns()
        # All at once would hold up operations that begin or end meanwhile, some 0.1 s.
        for i in range(0, len(operations), 500):
            with self._lock:
                for operation in operations[i : i + 500]:
                    operation.add_to(found, position)
        return found

    def summaries(self) -> list[OperationSummary]:
        with self._lock:
            return self._tree.summaries()

"""Record of the run-time tracker: snapshots, operations, operator statistics.

Note [Clock of the tracker]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every ``*_ns`` instant in this file is ``time.perf_counter_ns()`` of the process, the clock of
``CallColumns.start_ns``. ``TrackerMetadata.perf_origin_ns`` is what to add to have
``time.time_ns()``. It is measured once, when the tracker starts: the distance between two instants
stays right where the system's clock is set meanwhile.

Note [Bytes of the tracker]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
* *tensor bytes* are storages that a live Python tensor refers to, each storage once;
* *allocated bytes* are what a device's allocator has handed out, unknown on the CPU;
* *resident bytes* are the process's physical memory, as the system counts it.

Unknown is ``None``, or -1 in columns of integers; never 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from msgspec import Meta

from .category import Category
from .limits import Count, Int

MAX_LANES = 256
"""Threads, and likewise tasks at a time, with a lane of their own."""
MAX_NAMES = 2_000
"""Distinct places in the tree of operations; operations at further ones are counted together."""
MAX_DEVICES = 1_000
"""Devices that one snapshot or operation can have figures of."""
KEPT_SNAPSHOTS = (1_000, 10, 100_000)
"""How many snapshots a record keeps: the default, the least and the most."""
KEPT_OPERATIONS = (20_000, 0, 1_000_000)
"""How many operations a record keeps one by one: the default, the least and the most."""


class RunState(str, Enum):
    """Event that ended a tracker's record."""

    RUNNING = "running"
    """The record has not ended: its process is alive, or was killed."""
    STOPPED = "stopped"
    """``stop_tracking()``."""
    EXIT = "exit"
    """The interpreter ended."""
    EXCEPTION = "exception"
    """The interpreter ended because of an uncaught exception, Ctrl+C included."""
    SIGNAL = "signal"
    """A signal ended the process."""


class SnapshotKind(str, Enum):
    """Why a snapshot was taken."""

    PERIODIC = "periodic"
    CHECKPOINT = "checkpoint"
    """``checkpoint(name)``."""
    OUT_OF_MEMORY = "out_of_memory"
    """A device's allocator had no more to give, whether or not the program caught the error."""
    START = "start"
    END = "end"


class LaneKind(str, Enum):
    """Kind of a lane: a thread or an asyncio task."""

    THREAD = "thread"
    TASK = "task"
    """An asyncio task; it runs on a thread and takes turns with other tasks."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time, ``[start_ns, end_ns)``."""

    start_ns: Int
    end_ns: Int


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread or an asyncio task in which operations ran. ``thread`` is the lane of a task's
    thread, of a thread its own position; ``call_thread`` the number of the same thread in
    ``CallColumns.thread``, None where no compiled call ran in it or this is not known."""

    kind: LaneKind
    name: str
    thread: Int
    call_thread: Int | None = None


@dataclass(slots=True)
class TrackerMetadata:
    """The circumstances of a record.

    Attributes:
        perf_origin_ns: see Note [Clock of the tracker].
        start_ns, end_ns: when the tracker was started and when it stopped; while it has not,
            the instant of the last thing recorded.
        reason: ``state`` in words, e.g. ``SIGTERM`` or ``ValueError: no such file``.
        command: ``sys.argv``.
        interval_ns: between periodic snapshots.
        settings: the tracker's, as text.
        lanes: in order of their first operation.
        pauses: when the tracker was disabled.
        snapshots_taken: how many there were; old ones thin out.
        operations_seen, operations_dropped: invocations of tracked operations, and those that
            are no longer in ``operation_allocations``; ``operation_summary`` counts all.
        problems: what went wrong in the tracker, in words, each once.
    """

    perf_origin_ns: Int = 0
    start_ns: Int = 0
    end_ns: Int = 0
    state: RunState = RunState.RUNNING
    reason: str = ""
    host: str = ""
    pid: Int = 0
    command: tuple[str, ...] = ()
    torch: str = ""
    memprof: str = ""
    python: str = ""
    interval_ns: Int = 0
    settings: dict[str, str] = field(default_factory=dict)
    lanes: Annotated[list[Lane], Meta(max_length=2 * MAX_LANES)] = field(default_factory=list)
    pauses: list[Span] = field(default_factory=list)
    snapshots_taken: Int = 0
    operations_seen: Int = 0
    operations_dropped: Int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One of the largest tensors of a snapshot, or of those that an operation left alive.

    Attributes:
        dtype, device: e.g. ``torch.float32``, ``cuda:0``.
        nbytes: of its storage, which it may share with other tensors.
        tensors: how many known tensors share that storage, this one included.
        requires_grad: whether autograd follows it.
        operation: name path of the innermost operation in which it was made, e.g.
            ``step/forward``; "" if it was made in none or this is not known.
        name: qualified name of a parameter or buffer, "" if it is none or not known.
        graph, node, category: for memory of a compiled graph: ``GraphRecord.id``, the FX node
            that made it and what it is for; None where not known.
    """

    shape: tuple[Int, ...]
    dtype: str
    device: str
    nbytes: Int
    tensors: Int = 1
    requires_grad: bool = False
    operation: str = ""
    name: str = ""
    graph: Int | None = None
    node: str | None = None
    category: Category | None = None


@dataclass(frozen=True, slots=True)
class TrackedDevice:
    """The memory of one device in a snapshot; see Note [Bytes of the tracker].

    Attributes:
        reserved_bytes: what its allocator has from the system; on the CPU resident bytes.
        peak_bytes: highest allocated (CPU: resident) bytes since the process began, or since
            the user's program reset the allocator's mark.
        total_bytes: what the device has.
        highest_bytes: allocated (CPU: resident) bytes.
    """

    tensor_bytes: Int = 0
    tensors: Int = 0
    allocated_bytes: Int | None = None
    reserved_bytes: Int | None = None
    peak_bytes: Int | None = None
    total_bytes: Int | None = None
    highest_bytes: Int | None = None


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """The memory of the process at one instant.

    Attributes:
        name: of a checkpoint; of a failed allocation device, bytes and what was free; else "".
        total_bytes, total_tensors: all devices' ``tensor_bytes`` and ``tensors``.
        resident_bytes: of the process, None where the system does not say.
        devices: by device, e.g. ``cpu``, ``cuda:0``, ``mps:0``.
        largest: the largest tensors, largest storage first; a storage stands once.
        operations: name paths of the operations that were running.
        complete: False where new Python tensors could not be looked for (the garbage
            collector is off and has too many young objects): figures of tensors are old.
    """

    time_ns: Count
    kind: SnapshotKind = SnapshotKind.PERIODIC
    name: str = ""
    total_bytes: Int = 0
    total_tensors: Int = 0
    resident_bytes: Int | None = None
    devices: Annotated[dict[str, TrackedDevice], Meta(max_length=MAX_DEVICES)] = field(
        default_factory=dict
    )
    largest: tuple[TensorInfo, ...] = ()
    operations: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class MemoryColumns:
    """Memory of one device around operations, one entry an operation, bytes, -1 unknown: on the CPU
    resident, elsewhere what the allocator handed out. Where ``exact`` is False ``peak``, the
    highest inside, is a lower bound: the allocator keeps its highest mark, which tells the peak of
    an operation only if that sets a new one."""

    before: list[Int] = field(default_factory=list)
    after: list[Int] = field(default_factory=list)
    peak: list[Int] = field(default_factory=list)
    exact: list[bool] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OperationColumns:
    """Invocations of tracked operations, in order of their start; columns of one length.

    Attributes:
        summary: position in ``operation_summary``, which has the name.
        lane: position in ``TrackerMetadata.lanes``.
        parent: position in these columns of the operation around it, -1 if there is none.
        start_ns, end_ns: when; an operation that had not ended has ``end_ns`` -1.
        tensor_bytes_before, tensor_bytes_after, tensors_before, tensors_after: storages and tensors
            that live Python tensors refer to, all devices; -1 if not looked for, as in operations
            that are too short and too many for it.
        memory: by device.
        failed: whether an exception left it.
    """

    summary: list[Int] = field(default_factory=list)
    lane: list[Int] = field(default_factory=list)
    parent: list[Int] = field(default_factory=list)
    start_ns: list[Int] = field(default_factory=list)
    end_ns: list[Int] = field(default_factory=list)
    tensor_bytes_before: list[Int] = field(default_factory=list)
    tensor_bytes_after: list[Int] = field(default_factory=list)
    tensors_before: list[Int] = field(default_factory=list)
    tensors_after: list[Int] = field(default_factory=list)
    memory: dict[str, MemoryColumns] = field(default_factory=dict)
    failed: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.summary)


@dataclass(slots=True)
class DeviceSummary:
    """The memory of one device over all invocations of an operation, bytes: sum and highest of
    ``after - before``, the highest ``peak``, and of how many invocations that is known."""

    total_delta: Int = 0
    max_delta: Int = 0
    max_peak: Int = 0
    measured: Int = 0


@dataclass(slots=True)
class OperationSummary:
    """All invocations of one operation at one place of the tree of operations.

    Attributes:
        parent: position in ``operation_summary`` of the operation around it, -1 at the root.
        count, failed: invocations that have ended, and how many of them with an exception.
        tensor_bytes_delta, tensors_delta: sums over the ``tensors_measured`` invocations with known
            figures.
        left_bytes: of the storages that an invocation made and that were alive when it ended, those
            of operations inside included; of the invocation that left most.
        left: the largest of them, as they were then, largest first.
    """

    name: str
    parent: Int = -1
    count: Int = 0
    failed: Int = 0
    total_ns: Int = 0
    max_ns: Int = 0
    tensor_bytes_delta: Int = 0
    tensors_delta: Int = 0
    tensors_measured: Int = 0
    devices: Annotated[dict[str, DeviceSummary], Meta(max_length=MAX_DEVICES)] = field(
        default_factory=dict
    )
    left_bytes: Int = 0
    left: tuple[TensorInfo, ...] = ()

    @property
    def mean_ns(self) -> float:
        """Mean duration, 0 if none has ended."""
        return self.total_ns / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class OperatorStatistics:
    """One PyTorch operator over all windows of ``track_pytorch_ops()``.

    Times and bytes are ``torch.profiler``'s: *self* is without the operators that it calls;
    bytes are allocations less releases, so they can be negative. *Device* is the accelerator.
    """

    name: str
    count: Int
    cpu_ns: Int = 0
    self_cpu_ns: Int = 0
    device_ns: Int = 0
    self_device_ns: Int = 0
    cpu_bytes: Int = 0
    self_cpu_bytes: Int = 0
    device_bytes: Int = 0
    self_device_bytes: Int = 0


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of a PyTorch operator in a window of ``track_pytorch_ops(sequence=N)``.

    Attributes:
        name: e.g. ``aten::mm``.
        start_ns: when, by the profiler's clock, set to the tracker's where the window begins.
        depth: how many operators it ran inside of.
        cpu_ns: host time, with the operators that it called.
        self_cpu_bytes, self_device_bytes: allocations less releases, without those operators.
        shapes: of its inputs, () for one that is no tensor; () if not recorded.
    """

    name: str
    start_ns: Int
    depth: Count = 0
    cpu_ns: Int = 0
    self_cpu_bytes: Int = 0
    self_device_bytes: Int = 0
    shapes: tuple[tuple[Int, ...], ...] = ()


@dataclass(slots=True)
class OperatorRecord:
    """Statistics of operators that ``track_pytorch_ops()`` recorded.

    Attributes:
        windows: when it was on.
        sequence: the last calls, in order of their start, of all threads; empty if not asked for.
        operators: by self host time, highest first.
    """

    windows: list[Span] = field(default_factory=list)
    operators: list[OperatorStatistics] = field(default_factory=list)
    sequence: list[OperatorCall] = field(default_factory=list)


@dataclass(slots=True, repr=False)
class TrackerRecord:
    """The record of one tracker, the ``tracker`` of a ``Profile``: snapshots in order of time,
    single invocations of operations, the tree of operations (a parent stands before its children),
    and operator statistics."""

    metadata: TrackerMetadata = field(default_factory=TrackerMetadata)
    snapshots: list[MemorySnapshot] = field(default_factory=list)
    operation_allocations: OperationColumns = field(default_factory=OperationColumns)
    operation_summary: list[OperationSummary] = field(default_factory=list)
    pytorch_operations: OperatorRecord = field(default_factory=OperatorRecord)

    def __repr__(self) -> str:
        state = self.metadata.state.value
        return f"<TrackerRecord: {len(self.snapshots)} snapshots, {state}>"

    def path(self, summary: int) -> str:
        """Names from the root to ``operation_summary[summary]``, joined by ``/``."""
        return path_of(self.operation_summary, summary)

    def most_described(self) -> MemorySnapshot | None:
        """The snapshot with most tensor bytes, of those that describe tensors; None without any."""
        described = (s for s in self.snapshots if s.largest)
        return max(described, key=lambda s: s.total_bytes, default=None)


def path_of(places: Sequence[OperationSummary], position: int) -> str:
    """Names from the root of the tree of operations to ``places[position]``, joined by ``/``; ""
    for -1.

    Raises:
        ValueError: an operation stands before the one around it, as in no tree.
    """
    names: list[str] = []
    while position >= 0:
        place = places[position]
        names.append(place.name)
        if place.parent >= position:
            raise ValueError(f"operation {position} stands before the one around it")
        position = place.parent
    return "/".join(reversed(names))

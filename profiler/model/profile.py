"""A profile: what one process compiled, observed and called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from .captures import GraphPool
from .dataflow import DataFlowColumns
from .device import DeviceAccount
from .graph import GraphRecord
from .held import Held
from .ledger import LedgerEntry
from .limits import LARGEST, Count, Int, Positive
from .provenance import SourceFrame
from .step_time import StepTime
from .tracker import RunState, TrackerRecord


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its place in a distributed job, both ranks from 0; alone it is rank 0 of 1."""

    rank: Count = 0
    local_rank: Count = 0
    world_size: Positive = 1
    host: str = ""
    pid: Int = 0


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """The counters of one device's allocator, in bytes.

    Attributes:
        total: of the device's memory.
        allocated, reserved: handed out to the program, and taken from the device, at that instant.
        most_allocated, most_reserved: the most of each since the process began, or since it has
            reset these counters.
    """

    device: str
    total: Int = 0
    allocated: Int = 0
    reserved: Int = 0
    most_allocated: Int = 0
    most_reserved: Int = 0


class GrowthSource(str, Enum):
    """Part of a profile that has seen memory grow."""

    ALLOCATOR = "allocator"
    """The allocator's history, followed to the end (``eager=True``)."""
    TRACKER = "tracker"
    """Snapshots of the run-time tracker."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that is held and grows; see Note [What counts as growth] in ``growth.py``.

    Attributes:
        nbytes: that are held at the end.
        a_step: bytes by which it grows in each step, on average over those that were looked at.
        step: what a step is, e.g. ``optimizer step``, ``backward``, ``1,000 allocator events``.
        since: the first step of which something is held, from 1.
        steps: how many steps there were.
        holder: variable that leads to it, or to the tensor whose graph has it, e.g.
            ``debug[...], global of train.py``; empty if none was found.
        frame: line that made what is held, or most of it; None if not known.
        parts: what is held, most bytes first.
    """

    source: GrowthSource
    device: str
    nbytes: Count
    a_step: Count
    step: str
    since: Int
    steps: Int
    holder: str = ""
    frame: SourceFrame | None = None
    parts: tuple[Held, ...] = ()


FORMAT = "memprof-profile"
SCHEMA_VERSION = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a profile: its system, e.g. ``Linux-6.1``, its processor, cores that the
    process may use, bytes of physical memory (0 if unknown), and names of the devices torch sees.
    """

    system: str = ""
    cpu: str = ""
    cores: Int = 0
    memory_bytes: Int = 0
    accelerators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallColumns:
    """The call log, one entry a call, in order of return.

    Attributes:
        graph: ``GraphRecord.id``.
        program: index in that graph's ``programs``, -1 if the call has none.
        start_ns, end_ns: ``time.perf_counter_ns()``.
        thread: number of the calling thread, from 0 in order of first call.
        dropped: calls that are no longer in the log because it is bounded.
    """

    graph: list[Int] = field(default_factory=list)
    program: list[Int] = field(default_factory=list)
    start_ns: list[Int] = field(default_factory=list)
    end_ns: list[Int] = field(default_factory=list)
    thread: list[Int] = field(default_factory=list)
    dropped: Int = 0

    def __len__(self) -> int:
        return len(self.graph)

    def each(self, change: Callable[[list[int]], list[int]], dropped: int) -> CallColumns:
        """New columns: ``change`` applied to each of these, with ``dropped`` calls dropped."""
        columns = (self.graph, self.program, self.start_ns, self.end_ns, self.thread)
        graph, program, start, end, thread = map(change, columns)
        return CallColumns(graph, program, start, end, thread, dropped)


@dataclass(slots=True, repr=False)
class Profile:
    """The content of a profile file.

    Attributes:
        created_ns: ``time.time_ns()`` of the snapshot.
        options: memprof options in force that differ from the defaults, as text.
        graphs: ordered by id.
        ledger: in order of time.
        released: for identities (``Storage.identity``) of parameters, buffers and optimizer
            state whose memory the process has given back: the number of calls that had
            returned by then, dropped ones included.
        process: None if it is not known.
        perf_origin_ns: ``time.time_ns()`` when ``time.perf_counter_ns()`` was 0: what to add
            to the times of calls to have the times of the ledger, or those of another
            process. 0 if not known.
        tracker: what the run-time tracker recorded, None if it did not run.
        dataflow: None if no run of ``torch.profiler`` was added.
        accounts: the device with most reserved first; empty unless somebody watched them
            (``memprof simulate``, ``eager=True``).
        graph_pools: empty unless somebody watched captures (``graphs=True``).
        growth: as the process itself has found it, most a step first; ``growth.py`` adds what the
            other parts tell.
        optimizer_state: bytes of tensors in the state of the process's optimizers when the profile
            ended, by device, whether any compiled code has them or not.
        totals: what the allocators of devices counted at ``created_ns``; of a process that runs the
            latest that it has written.
        resident: bytes of physical memory that the process had then, None if not known.
        step_time: of the step that ``memprof simulate`` has followed, None if it followed none.
        complete: False if the process never came to the end of its session: the
            file of a job that was killed, or that still runs.
        left_out: what a reader has not read, a line each: from which byte on, why, and the path of
            what is wrong; or the whole profile of another process.
    """

    format: str = FORMAT
    schema_version: Int = SCHEMA_VERSION
    created_ns: Int = 0
    memprof: str = ""
    torch: str = ""
    python: str = ""
    machine: Machine = field(default_factory=Machine)
    options: dict[str, str] = field(default_factory=dict)
    graphs: list[GraphRecord] = field(default_factory=list)
    calls: CallColumns = field(default_factory=CallColumns)
    ledger: list[LedgerEntry] = field(default_factory=list)
    released: dict[Int, Count] = field(default_factory=dict)
    process: Process | None = None
    perf_origin_ns: Int = 0
    tracker: TrackerRecord | None = None
    dataflow: DataFlowColumns | None = None
    accounts: list[DeviceAccount] = field(default_factory=list)
    graph_pools: list[GraphPool] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    optimizer_state: dict[str, Count] = field(default_factory=dict)
    totals: list[DeviceTotals] = field(default_factory=list)
    resident: Int | None = None
    step_time: StepTime | None = None
    complete: bool = True
    left_out: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        parts = [f"{len(self.graphs)} graphs", f"{len(self.calls) + self.calls.dropped:,} calls"]
        named = (
            ("tracker", self.tracker),
            ("dataflow", self.dataflow),
            (f"{len(self.accounts)} accounts", self.accounts),
            (f"{len(self.graph_pools)} graph_pools", self.graph_pools),
            (f"{len(self.growth)} growth", self.growth),
            ("not complete", not self.complete),
        )
        parts += [name for name, there in named if there]
        return f"<Profile: {', '.join(parts)}>"

    def with_tracker(self, record: TrackerRecord) -> Profile:
        """This profile with a tracker's record; what it does not say is taken from that."""
        m = record.metadata
        ended_ns = m.perf_origin_ns + m.end_ns
        return replace(
            self,
            created_ns=self.created_ns or (ended_ns if abs(ended_ns) <= LARGEST else 0),
            memprof=self.memprof or m.memprof,
            torch=self.torch or m.torch,
            python=self.python or m.python,
            perf_origin_ns=self.perf_origin_ns or m.perf_origin_ns,
            tracker=record,
            complete=m.state is not RunState.RUNNING,
        )

    def graph(self, id: int) -> GraphRecord:
        """The graph with this id.

        Raises:
            KeyError: no graph has it.
        """
        for g in self.graphs:
            if g.id == id:
                return g
        raise KeyError(f"no graph {id} in this profile; it has {[g.id for g in self.graphs]}")

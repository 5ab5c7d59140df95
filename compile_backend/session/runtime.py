"""Compiled graphs, observed programs and calls of this process: the live side of a ``Profile``."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    GraphRecord,
    LedgerEntry,
    LedgerKind,
    NodeProvenance,
    Role,
)
from memprof.profiler.support.counter import Counter
from memprof.profiler.support.process_hooks import ForkSafeLock

from .environment import new_profile, perf_origin_ns, process
from .ledger import Ledger, LedgerKey
from .storage_identities import StorageIdentities

# Who makes a profile imports its classes, which takes longer than to import all that compiles.
if TYPE_CHECKING:
    from memprof.profiler.model import CallColumns, Process, Profile

_PERSISTENT = {Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE}


CallRecord = tuple[int, int, int, int, int]
"""(graph id, program index, start ns, end ns, thread identifier)"""

DEFAULT_CAPACITY = 65_536


class CallLog:
    """The last ``capacity`` calls. ``record`` is on the hot path: a ``deque.append``, atomic under
    the GIL, about 0.1 µs. It is looked up at each call, so that ``resize`` may replace it. A call
    takes 192 bytes.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._records: deque[CallRecord] = deque(maxlen=capacity)
        self.record: Callable[[CallRecord], None] = self._records.append

    @property
    def capacity(self) -> int:
        """Most calls that the log keeps."""
        return self._records.maxlen or 0

    def resize(self, capacity: int) -> None:
        """Keep the last ``capacity`` calls from here on."""
        self._records = deque(self._records, maxlen=capacity)
        self.record = self._records.append

    def clear(self) -> None:
        """Forget all records."""
        self._records.clear()

    def after(self, last: CallRecord | None = None) -> list[CallRecord]:
        """The records that came after ``last``, a record of this log; all that are left if
        that one has been pushed out, or is None."""
        # A copy first: the deque grows while we look. Copying is one step under the GIL.
        records = list(self._records)
        for i in range(len(records) - 1, -1, -1):
            if records[i] == last:
                return records[i + 1 :]
        return records


def columns(
    records: Iterable[CallRecord],
    graphs: Iterable[int],
    since_ns: int = 0,
    returned: int = 0,
    threads: dict[int, int] | None = None,
) -> CallColumns:
    """Columns of those ``records`` that call one of ``graphs`` and began at ``since_ns`` or later.

    Args:
        since_ns: ``time.perf_counter_ns()``.
        returned: how many such calls there were; what is missing is ``dropped``.
        threads: filled with the number that each thread gets, by its identifier.
    """
    from memprof.profiler.model import CallColumns

    wanted = set(graphs)
    numbers = {} if threads is None else threads
    calls = [r for r in records if r[0] in wanted and r[2] >= since_ns]
    return CallColumns(
        graph=[r[0] for r in calls],
        program=[r[1] for r in calls],
        start_ns=[r[2] for r in calls],
        end_ns=[r[3] for r in calls],
        thread=[numbers.setdefault(r[4], len(numbers)) for r in calls],
        dropped=max(0, returned - len(calls)),
    )


@dataclass(frozen=True)
class Session:
    """A span of time whose calls make one profile: without arguments, all of the process."""

    since_perf_ns: int = 0
    perf_origin_ns: int = field(default_factory=perf_origin_ns)
    # A process group may be gone again when the session ends, or not be there yet.
    process: Process = field(default_factory=process)
    ledger_before: Mapping[LedgerKey, int] = field(default_factory=dict)
    trees_before: Mapping[Any, int] = field(default_factory=dict)
    calls_before: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class LiveGraph:
    """A compiled graph; profiles hold copies of ``record``, whose ``calls`` is theirs alone.

    Attributes:
        aot_nodes: the nodes of its AOT graph by name, which a forward's backward needs.
        instrumented: the code of an instrumented copy of its generated code
            (``WrapperCode.copy``), until its calls are observed.
        read_details: gives the record of a graph from a cache its nodes, buffers and statements;
            None once it has them.
    """

    record: GraphRecord
    calls: Counter = field(default_factory=Counter)
    aot_nodes: Mapping[str, NodeProvenance] = field(default_factory=dict)
    instrumented: bytes | None = None
    read_details: Callable[[], None] | None = None

    def complete(self) -> None:
        """Give the record all that is known of the graph."""
        read, self.read_details = self.read_details, None
        if read is not None:
            read()


FORWARDS: dict[int, LiveGraph] = {}
"""The forwards of this process whose backwards are captured, by AOTAutograd's id; the latest of an
id counts."""


class Runtime:
    """Graphs, calls and ledger of this process; one instance, ``RUNTIME``."""

    def __init__(self) -> None:
        self.calls = CallLog()
        self.ledger = Ledger()
        self.identities = StorageIdentities()
        self.options: dict[str, str] = {}
        self._graphs: dict[int, LiveGraph] = {}
        self._ids = itertools.count()
        self._lock = ForkSafeLock()
        self._sessions = 0
        self._persistent: set[int] = set()
        self._released: dict[int, int] = {}
        self.identities.listen(self._storage_died)

    def new_graph_id(self) -> int:
        """Number for a graph, unique in the process."""
        return next(self._ids)

    def add(self, graph: LiveGraph) -> None:
        """Make a compiled graph part of the profile."""
        with self._lock:
            self._graphs[graph.record.id] = graph

    def discard(self, graph: LiveGraph) -> None:
        """Take a graph that was never called out of the profile."""
        with self._lock:
            self._graphs.pop(graph.record.id, None)

    def graphs(self) -> list[LiveGraph]:
        """All graphs, complete, ordered by id."""
        with self._lock:
            found = [self._graphs[i] for i in sorted(self._graphs)]
            for graph in found:
                graph.complete()
            return found

    def note_persistent(self, record: GraphRecord, program: AllocationProgram) -> None:
        """Watch the release of what may stay between calls of a new program: parameters, buffers,
        optimizer state, and what the graph writes to."""
        for storage in program.storages:
            values = (record.inputs[i] for i in storage.inputs if i < len(record.inputs))
            if storage.identity is not None and any(
                v.role in _PERSISTENT or v.category is Category.PERSISTENT_STATE or v.mutated
                for v in values
            ):
                self._persistent.add(storage.identity)

    def _storage_died(self, identity: int) -> None:
        if identity in self._persistent:
            self._persistent.discard(identity)
            self._released[identity] = self.returned()

    def returned(self) -> int:
        """Number of calls that have returned, of all graphs."""
        return sum(g.calls.value for g in list(self._graphs.values()))

    def reset(self) -> None:
        """Forget what was compiled: ``torch._dynamo.reset()`` has dropped it. While a profiling
        session is open its graphs stay, since it will report their calls."""
        with self._lock:
            if self._sessions == 0:
                self._graphs.clear()
                self.calls.clear()
                self._persistent.clear()
                self._released.clear()
                self.options.clear()
                _trees_history().forget_the_dead()
        self.ledger.add(LedgerKind.RESET, None, "torch._dynamo.reset()")

    def open_session(self, max_calls: int) -> Session:
        """Start a profiling session that keeps up to ``max_calls`` calls."""
        with self._lock:
            self._sessions += 1
            if max_calls > self.calls.capacity:
                self.calls.resize(max_calls)
        return Session(
            time.perf_counter_ns(),
            ledger_before=self.ledger.counts(),
            trees_before={key: e.count for key, e in _trees_history().ledger_entries().items()},
            calls_before={i: g.calls.value for i, g in list(self._graphs.items())},
        )

    def close_session(self) -> None:
        """End one profiling session; after the last one the call log is as short as before."""
        with self._lock:
            self._sessions -= 1
            if not self._sessions:
                self.calls.resize(DEFAULT_CAPACITY)

    def profile(
        self, session: Session | None = None, threads: dict[int, int] | None = None
    ) -> Profile:
        """Profile of this process so far, or of what belongs to ``session``.

        A graph belongs to a session if it was compiled or called in it. ``threads`` is filled
        with the numbers of threads in ``calls``, by ``threading.get_ident()``.
        """
        # In this order: of a call that is in the log, the snapshot has graph and program.
        records = self.calls.after()
        found = self.snapshot(session)
        made = {g.id: g.calls for g in found.graphs}
        since = session.since_perf_ns if session else 0
        found.calls = columns(records, made, since, sum(made.values()), threads)
        return found

    def snapshot(self, session: Session | None = None) -> Profile:
        """Profile as ``profile`` returns it, without the call log."""
        session = session or Session()
        before = session.calls_before
        graphs = self.graphs()
        made = {g.record.id: g.calls.value - before.get(g.record.id, 0) for g in graphs}
        records = [r for r in (g.record for g in graphs) if r.id not in before or made[r.id]]
        return replace(
            new_profile(),
            options=dict(self.options),
            # Copies: each profile has its own count of calls, and no program of later calls.
            graphs=[replace(r, calls=made[r.id], programs=list(r.programs)) for r in records],
            ledger=self._entries(session, {r.id for r in records}),
            released=self._releases(session, sum(made.values())),
            process=max(process(), session.process, key=attrgetter("world_size")),
            perf_origin_ns=session.perf_origin_ns,
        )

    def _entries(self, session: Session, graphs: set[int]) -> list[LedgerEntry]:
        """Ledger entries; one about a graph that is not in the profile names no graph."""
        entries = self.ledger.entries_since(session.ledger_before)
        for key, entry in _trees_history().ledger_entries().items():
            count = entry.count - session.trees_before.get(key, 0)
            if count:
                entries.append(replace(entry, count=count))
        entries.sort(key=lambda e: e.time_ns)
        return [e if e.graph in graphs else replace(e, graph=None) for e in entries]

    def _releases(self, session: Session, made: int) -> dict[int, int]:
        """After how many of the ``made`` calls, of which other threads make more meanwhile."""
        start = sum(session.calls_before.values())
        return {i: min(max(0, n - start), made) for i, n in list(self._released.items())}


def _trees_history() -> Any:
    """The module in which graph trees keep what they did, for processes that may have none."""
    from memprof.cudagraph_trees.explain import history

    return history


RUNTIME = Runtime()

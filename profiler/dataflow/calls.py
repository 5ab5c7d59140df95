"""Calls of generated code in a trace, each with the program that memprof observed of it.

Note [A call and its program]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The generated function is a Python call whose name holds its file, and memprof knows the
graph of that file and, from observing it, the order and sizes of everything it allocates.
Allocations of the trace inside the call are put against the ALLOC events of the graph's
programs; if the sizes agree one by one they are the same. Else memprof's log of calls says
which program ran, and a common order of sizes is taken: the trace has more where an operator took
scratch memory that was not observed (it depends on threads and caches), and less where the call was
replayed (``replays.py``) or got memory from elsewhere. It is ``difflib``'s: the longest run of
sizes that both have in a row, then the same on either side of it. That keeps neighbours together,
which go together; it need not be the longest common order there is.

The trace tells when matched allocations happened; what lies between two of them in the
program is spread evenly over the time between them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import PurePath

import numpy as np

from memprof.profiler.model import AllocationProgram, EventKind, GraphRecord, Profile

from . import _torch_compat as compat
from .columns import EventColumns, Ints, ScopeKind

NEAREST_CALL_NS = 50_000_000
"""How far a logged call may lie from a traced one and still be taken for it: the clocks
of the log and the trace are different ones, read at different times."""


@dataclass(slots=True)
class GeneratedCall:
    """One call of generated code.

    Attributes:
        scope: its row in the scope table.
        graph, program: what ran, None if unknown.
        rows: of what it allocates, in order.
        events: for each of them, the event of the program that it is, -1 if none.
        replayed: rows were added because the call was replayed.
        why: why rows and program do not agree, "" where they do.
    """

    scope: int
    graph: GraphRecord | None
    program: AllocationProgram | None
    rows: list[int]
    events: list[int]
    replayed: bool = False
    why: str = ""

    @property
    def missing(self) -> list[int]:
        """ALLOC events of the program that no row is."""
        if self.program is None:
            return []
        there = set(self.events)
        return [i for i in _allocations(self.program)[0] if i not in there]

    def times(self, columns: EventColumns) -> Ints:
        """When each event of the program happened, ns; see the note above."""
        assert self.program is not None
        scopes, start = columns.scopes, columns.allocations.start
        begin, n = int(scopes.start[self.scope]), len(self.program.events)
        pairs = zip(self.events, self.rows, strict=True)
        known = sorted((event, int(start[row])) for event, row in pairs if event >= 0)
        at = [-1, *(e for e, _ in known), n]
        # Relative: a float holds no more than 53 bits.
        when = [0, *(t - begin for _, t in known), int(scopes.end[self.scope]) - begin]
        return np.interp(np.arange(n), at, when).astype(np.int64) + begin


class _Log:
    """The graphs and logged calls of a profile."""

    def __init__(self, profile: Profile) -> None:
        self.graphs: dict[str, list[GraphRecord]] = {}
        for graph in profile.graphs:
            if graph.code_path:
                self.graphs.setdefault(PurePath(graph.code_path).stem, []).append(graph)
        # The log counts from an arbitrary instant, traces from the epoch.
        origin = profile.perf_origin_ns or time.time_ns() - time.perf_counter_ns()
        graph_of = np.asarray(profile.calls.graph, np.int64)
        starts = np.asarray(profile.calls.start_ns, np.int64) + origin
        program = np.asarray(profile.calls.program, np.int64)
        self.calls: dict[int, tuple[Ints, Ints]] = {}  # of a graph: start, program
        for id in np.unique(graph_of).tolist():
            mine = np.flatnonzero(graph_of == id)
            mine = mine[np.argsort(starts[mine], kind="stable")]
            self.calls[id] = starts[mine], program[mine]

    def candidates(self, module: str, start: int) -> tuple[list[GraphRecord], int]:
        """Graphs whose code is in this file, those called nearest to ``start`` first; and the
        program of the first that was called then, -1 if the log does not say."""
        found = []
        for graph in self.graphs.get(module, []):
            starts, programs = self.calls.get(graph.id, (np.zeros(0), np.zeros(0)))
            after = int(np.searchsorted(starts, start))
            away, program = NEAREST_CALL_NS, -1
            for i in range(max(after - 1, 0), min(after + 1, len(starts))):
                if abs(int(starts[i]) - start) < away:
                    away, program = abs(int(starts[i]) - start), int(programs[i])
            found.append((away, program, graph))
        found.sort(key=lambda f: f[0])
        return [graph for _, _, graph in found], found[0][1] if found else -1


def match_calls(columns: EventColumns, profile: Profile | None) -> list[GeneratedCall]:
    """All calls of generated code, by time.

    Args:
        columns: the trace.
        profile: memprof's profile of the process that was traced, None without one.
    """
    log = _Log(profile) if profile is not None else None
    known: _Known = {}
    calls = []
    for scope, rows in _generated_calls(columns):
        name = columns.names[int(columns.scopes.name[scope])]
        start = int(columns.scopes.start[scope])
        call = GeneratedCall(scope, None, None, rows.tolist(), [-1] * len(rows))
        calls.append(call)
        if log is None:
            call.why = "no memprof profile was given"
            continue
        candidates, logged = log.candidates(compat.generated_module(name), start)
        if not candidates:
            call.why = "not compiled by memprof"
        else:
            call.graph = candidates[0]
            sizes = columns.allocations.size[rows].tolist()
            _match(call, sizes, candidates, logged, known)
    calls.sort(key=lambda c: int(columns.scopes.start[c.scope]))
    return calls


def _generated_calls(columns: EventColumns) -> Iterator[tuple[int, Ints]]:
    """Scope rows of generated functions, with the allocations inside, frees left out."""
    scopes, allocations = columns.scopes, columns.allocations
    outer = scopes.around(ScopeKind.GENERATED_CODE, outermost=True)
    calls = np.flatnonzero(outer == np.arange(len(outer)))
    call = outer[allocations.scope]
    rows = np.flatnonzero((call >= 0) & (allocations.size > 0))
    rows = rows[np.argsort(call[rows], kind="stable")]
    bounds = np.searchsorted(call[rows], [calls, calls + 1])
    for scope, lo, hi in zip(calls.tolist(), *bounds.tolist(), strict=True):
        yield scope, rows[lo:hi]


def _allocations(program: AllocationProgram) -> tuple[list[int], list[int]]:
    """ALLOC events of a program, and the bytes of each."""
    at = [i for i, e in enumerate(program.events) if e.kind is EventKind.ALLOC]
    return at, [program.storages[program.events[i].storage].nbytes for i in at]


_Known = dict[tuple[int, tuple[int, ...]], list[int]]
"""What ``_common`` found, by ``id()`` of the program and sizes: calls repeat themselves, and it
takes seconds for thousands of allocations."""


def _match(
    call: GeneratedCall,
    sizes: list[int],
    candidates: list[GraphRecord],
    logged: int,
    known: _Known,
) -> None:
    """Find the program of a call and put its allocations against it."""
    programs = [(graph, p) for graph in candidates for p in graph.programs]
    for graph, program in programs:
        at, expected = _allocations(program)
        if sizes == expected:
            call.graph, call.program, call.events = graph, program, at
            return
    first = candidates[0]
    if 0 <= logged < len(first.programs):
        programs = [(first, first.programs[logged])]
    most = -1
    for graph, program in programs:
        key = id(program), tuple(sizes)
        if key not in known:
            known[key] = _common(sizes, program)
        events = [*known[key]]
        explained = sum(n for n, e in zip(sizes, events, strict=True) if e >= 0)
        if explained > most:
            most = explained
            call.graph, call.program, call.events = graph, program, events
    if call.program is None:
        call.why = f"no program was observed of {first.label}" + (
            f": {first.unobservable}" if first.unobservable else ""
        )
        return
    call.why = _in_part(call, call.program)


def _common(sizes: list[int], program: AllocationProgram) -> list[int]:
    """For each allocation its event in a common order, -1 if it is in none: Note [A call and its
    program]."""
    at, expected = _allocations(program)
    events = [-1] * len(sizes)
    matcher = SequenceMatcher(None, sizes, expected, autojunk=False)
    for block in matcher.get_matching_blocks():
        for i in range(block.size):
            events[block.a + i] = at[block.b + i]
    return events


def _in_part(call: GeneratedCall, program: AllocationProgram) -> str:
    """What of a program the call did not allocate, in words; "" if it did all."""
    missing = call.missing
    if not missing:
        return ""  # what the trace has besides is scratch memory that was not observed
    if not any(e >= 0 for e in call.events):
        return "it allocates nothing of its program"
    storages = [program.storages[program.events[i].storage] for i in missing]
    names = Counter("scratch memory" if not s.name else s.name for s in storages)
    said = ", ".join(f"{n} times {k}" if n > 1 else k for k, n in names.most_common(3))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its program allocates {sum(s.nbytes for s in storages)} bytes more ({said}{more})"

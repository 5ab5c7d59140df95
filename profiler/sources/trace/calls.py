"""Calls of generated code in a trace, each with the program that memprof observed of it.

Note [A call and its program]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The name of the generated function's Python call holds its file, and memprof knows the graph of that
file and the order and sizes of everything it allocates. If the sizes of the call's allocations are
those of a program's ALLOC events one by one, they are the same. Else memprof's log of calls says
which program ran, and ``difflib`` finds a common order: the trace has more where an operator took
scratch memory that was not observed (it depends on threads and caches), and less where a CUDA graph
was replayed, which allocates nothing, or where memory came from elsewhere. That keeps neighbours
together, which go together; it need not be the longest common order there is.

The trace tells when matched allocations happened; what lies between two of them in the program is
spread evenly over the time between them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
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
    """One call of generated code."""

    scope: int  # its row in the scope table
    graph: GraphRecord | None  # what ran
    program: AllocationProgram | None
    rows: dict[int, int]  # by event of the program, the allocation that it is
    why: str = ""  # rows and program do not agree

    def times(self, columns: EventColumns) -> Ints:
        """When each event of the program happened, ns; see the note above."""
        assert self.program is not None
        scopes, start = columns.scopes, columns.allocations.start
        begin, n = int(scopes.start[self.scope]), len(self.program.events)
        known = sorted((event, int(start[row])) for event, row in self.rows.items())
        at = [-1, *(e for e, _ in known), n]
        # Relative: a float holds no more than 53 bits.
        when = [0, *(t - begin for _, t in known), int(scopes.end[self.scope]) - begin]
        return np.interp(np.arange(n), at, when).astype(np.int64) + begin


def match_calls(columns: EventColumns, profile: Profile | None) -> list[GeneratedCall]:
    """All calls of generated code, by time.

    Args:
        columns: the trace.
        profile: memprof's profile of the process that was traced, None without one.
    """
    graphs: dict[str, list[GraphRecord]] = {}
    for graph in profile.graphs if profile is not None else ():
        if graph.code_path:
            graphs.setdefault(PurePath(graph.code_path).stem, []).append(graph)
    logged = {} if profile is None else _logged(profile)
    # Calls repeat themselves, and to find a common order of thousands of allocations takes seconds.
    known: dict[tuple[int, ...], _Match] = {}
    calls = []
    for scope, rows in _generated_calls(columns):
        call = GeneratedCall(scope, None, None, {})
        calls.append(call)
        start = int(columns.scopes.start[scope])
        file = compat.generated_module(columns.names[int(columns.scopes.name[scope])])
        if profile is None:
            call.why = "no memprof profile was given"
        elif file not in graphs:
            call.why = "not compiled by memprof"
        else:
            # Of several graphs with this code the one that was called nearest to it is first.
            nearest = [_nearest(logged.get(graph.id, ()), start) for graph in graphs[file]]
            order = sorted(range(len(nearest)), key=lambda i: nearest[i][0])
            candidates, program = [graphs[file][i] for i in order], nearest[order[0]][1]
            sizes = columns.allocations.size[rows].tolist()
            key = (*map(id, candidates), program, *sizes)
            if key not in known:
                known[key] = _matched(sizes, candidates, program)
            call.graph, call.program, index_of, call.why = known[key]
            call.rows = {event: int(rows[i]) for event, i in index_of.items()}
    calls.sort(key=lambda c: int(columns.scopes.start[c.scope]))
    return calls


def _logged(profile: Profile) -> dict[int, list[tuple[int, int]]]:
    """By graph, its logged calls in order of time: when they began, and the program."""
    # The log counts from an arbitrary instant, traces from the epoch.
    origin = profile.perf_origin_ns or time.time_ns() - time.perf_counter_ns()
    log = profile.calls
    found: dict[int, list[tuple[int, int]]] = {}
    for start, graph, program in sorted(zip(log.start_ns, log.graph, log.program, strict=True)):
        found.setdefault(graph, []).append((start + origin, program))
    return found


def _nearest(calls: Sequence[tuple[int, int]], start: int) -> tuple[int, int]:
    """Distance (ns) to the nearest of a graph's logged calls, and its program; -1 for the program
    if none is near enough."""
    at = bisect_left(calls, (start,))
    near = [(abs(begun - start), program) for begun, program in calls[max(at - 1, 0) : at + 1]]
    away, program = min(near, default=(NEAREST_CALL_NS, -1))
    return (away, program) if away < NEAREST_CALL_NS else (NEAREST_CALL_NS, -1)


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


def _allocations(program: AllocationProgram) -> dict[int, int]:
    """ALLOC events of a program, and the bytes of each."""
    return {
        i: program.storages[e.storage].nbytes
        for i, e in enumerate(program.events)
        if e.kind is EventKind.ALLOC
    }


_Match = tuple[GraphRecord, AllocationProgram | None, dict[int, int], str]
"""Graph and program of a call, index of each event's allocation, and reason of a mismatch."""


def _matched(sizes: list[int], candidates: list[GraphRecord], logged: int) -> _Match:
    """Graph and program of a call that allocates ``sizes`` (bytes), of candidates with the
    likeliest first, of which the log says that it ran program number ``logged``."""
    programs = [(graph, p) for graph in candidates for p in graph.programs]
    for graph, program in programs:
        expected = _allocations(program)
        if sizes == [*expected.values()]:
            return graph, program, {event: i for i, event in enumerate(expected)}, ""
    first = candidates[0]
    if not programs:
        why = f": {first.unobservable}" if first.unobservable else ""
        return first, None, {}, f"no program was observed of {first.label}{why}"
    if 0 <= logged < len(first.programs):
        programs = [(first, first.programs[logged])]
    found = [(graph, program, _common(sizes, program)) for graph, program in programs]
    graph, program, index_of = max(found, key=lambda f: sum(sizes[i] for i in f[2].values()))
    return graph, program, index_of, _in_part(program, index_of)


def _common(sizes: list[int], program: AllocationProgram) -> dict[int, int]:
    """The index of each event's allocation in a common order: Note [A call and its program]."""
    expected = _allocations(program)
    at = [*expected]
    matcher = SequenceMatcher(None, sizes, [*expected.values()], autojunk=False)
    return {
        at[block.b + i]: block.a + i
        for block in matcher.get_matching_blocks()
        for i in range(block.size)
    }


def _in_part(program: AllocationProgram, index_of: dict[int, int]) -> str:
    """Description of the program's allocations that a call did not make; "" if it made all."""
    missing = [program.events[e].storage for e in _allocations(program) if e not in index_of]
    if not missing:
        return ""  # what the trace has besides is scratch memory that was not observed
    if not index_of:
        return "it allocates nothing of its program, as a replayed CUDA graph does"
    storages = [program.storages[i] for i in missing]
    names = Counter(s.name or "scratch memory" for s in storages)
    first = ", ".join(f"{n} times {k}" if n > 1 else k for k, n in names.most_common(3))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its program allocates {sum(s.nbytes for s in storages)} bytes more ({first}{more})"

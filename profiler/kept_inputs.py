"""Inputs that graphs write to and that stay: caches that are no module's, and that nobody marked.

Note [A cache that is an argument]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
When a graph is compiled nothing tells a cache of keys and values from any other tensor that the
program hands in to be written to. What came of it does: the same memory is there for call after
call of graphs that write to such an input. So this is decided when a profile is read, for all
programs that have that memory: also for the one that made it.
"""

from __future__ import annotations

from .model import Category, GraphValue, Profile, Role

CALLS = 3
"""Calls of a graph for which an input that it writes to must be there."""


def kept_inputs(profile: Profile) -> frozenset[int]:
    """Identities of storages that are state, of which their graph says that they are inputs."""
    first: dict[int, tuple[int, int]] = {}
    graphs = {g.id: g for g in profile.graphs if any(_may_be_state(v) for v in g.inputs)}
    if not graphs:
        return frozenset()
    seen: set[tuple[int, int]] = set()
    calls_of: dict[int, list[int]] = {graph: [] for graph in graphs}
    calls = profile.calls
    for k, (graph, program) in enumerate(zip(calls.graph, calls.program, strict=True)):
        record = graphs.get(graph)
        if record is None:
            continue
        calls_of[graph].append(k)
        if (graph, program) in seen or not 0 <= program < len(record.programs):
            continue
        seen.add((graph, program))
        for s in record.programs[program].storages:
            if s.identity is not None and s.category is Category.INPUT:
                written = (record.inputs[i] for i in s.inputs if i < len(record.inputs))
                if any(map(_may_be_state, written)):
                    first.setdefault(s.identity, (graph, k))
    found = set()
    for identity, (graph, begin) in first.items():
        released = profile.released.get(identity)
        end = len(calls) if released is None else released - calls.dropped
        if sum(begin <= k < end for k in calls_of[graph]) >= CALLS:
            found.add(identity)
    return frozenset(found)


def _may_be_state(value: GraphValue) -> bool:
    return value.mutated and value.role is Role.USER_INPUT and value.category is Category.INPUT

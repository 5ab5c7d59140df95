"""Pairs of each call of a backward with the calls of its forwards, in a call log and in a trace.

Note [Forwards and their backwards]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A forward and the backward that AOTAutograd made of it share a ``graph_id``; what a captured
backward is given says which forwards' it is (``GraphValue.forward_graph``). A backward belongs to
the latest call of its forward still waiting that saved as many bytes as the backward is given, or
to the latest at all. A captured backward may be of several calls of one forward, a block of layers
that share their code for instance, and Dynamo may have cut it into several graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from memprof.profiler.model import GraphKind, GraphRecord, Profile

_UNKNOWN = -1


def pair(
    calls: Sequence[GraphRecord | None],
    saved: Callable[[int], int] = lambda call: _UNKNOWN,
    given: Callable[[int, int | None], int] = lambda call, graph_id: _UNKNOWN,
) -> dict[int, list[tuple[int, int]]]:
    """Calls of backwards by call of their forward, in order of the backwards' calls.

    Several where a captured backward was cut into several graphs. With each, the number of later
    calls of the same forward that it is the backward of, too.

    Args:
        calls: what each call ran, by time; None if that is not known.
        saved: bytes that a call of a forward saved, -1 if not known.
        given: bytes that a call of a backward is given by the calls of the forward with that
            ``graph_id``, -1 if not known.
    """
    graphs = {id(g): g for g in calls if g is not None}
    key = {g.id: g.graph_id for g in graphs.values() if g.kind is GraphKind.FORWARD}
    forwards = {
        name: forwards_of(g, key) for name, g in graphs.items() if g.kind is GraphKind.BACKWARD
    }
    # graph_id -> bytes saved -> calls that wait
    waiting: dict[int | None, dict[int, list[int]]] = {}
    found: dict[int, list[tuple[int, int]]] = {}
    # Of each captured backward: graphs of it that have run, and the forwards' calls that it is of.
    runs: dict[str, tuple[set[int], dict[int | None, list[int]]]] = {}
    for call, graph in enumerate(calls):
        if graph is None:
            continue
        if graph.kind is GraphKind.FORWARD:
            if graph.graph_id is not None:
                stacks = waiting.setdefault(graph.graph_id, {})
                stacks.setdefault(saved(call), []).append(call)
            continue
        if graph.kind is not GraphKind.BACKWARD:
            continue
        of: dict[int | None, list[int]] = {}
        if (capture := captured_by(graph)) is not None:
            ran, of = runs.get(capture, (set(), of))
            if graph.id in ran:  # the whole backward again
                ran, of = set(), {}
            ran.add(graph.id)
            runs[capture] = ran, of
        for forward, times in forwards[id(graph)].items():
            mates = of.setdefault(forward, [])
            stacks = waiting.get(forward, {})
            while len(mates) < times:
                nbytes, over = divmod(given(call, forward), times)
                exact = stacks.get(_UNKNOWN if over else nbytes)
                stack = exact or max(stacks.values(), key=lambda s: s[-1:], default=None)
                if not stack:
                    break
                mates.append(stack.pop())
            for nth, mate in enumerate(mates[:times]):
                found.setdefault(mate, []).append((call, nth))
    return found


def forwards_that_wait(profile: Profile) -> Counter[int]:
    """Number of each forward's calls that had no backward, by graph id."""
    graphs = {g.id: g for g in profile.graphs}
    forwards = {g.id for g in profile.graphs if g.kind is GraphKind.FORWARD}
    calls = profile.calls.graph
    paired = pair([graphs.get(id) for id in calls])
    return Counter(id for k, id in enumerate(calls) if id in forwards and k not in paired)


def captured_by(graph: GraphRecord) -> str | None:
    """The capture that a captured backward is of, e.g. ``!3``; None for others."""
    compile_id = graph.compile_id or ""
    return compile_id.partition("/")[0] if compile_id.startswith("!") else None


def forwards_of(backward: GraphRecord, key: Mapping[int, int | None]) -> dict[int | None, int]:
    """Number of calls of each forward, by ``graph_id``, that ``backward`` is the backward of;
    ``key`` is the ``graph_id`` of each forward by the id of its record."""
    times: dict[int | None, int] = {}
    given = Counter(
        (v.forward_graph, v.forward_output)
        for v in backward.inputs
        if v.forward_graph in key and v.forward_output is not None
    )
    for (forward, _), count in given.items():
        graph_id = key[forward] if forward is not None else None
        times[graph_id] = max(count, times.get(graph_id, 0))
    if not times and captured_by(backward) is None:
        return {backward.graph_id: 1}
    return times

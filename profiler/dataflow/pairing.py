"""Which calls of forwards each call of a backward in a trace belongs to.

A forward and the backward that AOTAutograd made of it share a ``graph_id``; what a captured
backward is given says which forwards' it is (``GraphValue.forward_graph``). Calls pair up last
in, first out. A captured backward may be of several calls of one forward, a block of layers that
share their code for instance, and Dynamo may have cut it into several graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from memprof.profiler.model import EventKind, GraphKind, GraphRecord

from .calls import GeneratedCall
from .columns import EventColumns

_ITS_OWN = -1

SavedValue = tuple[int, int, int]
"""What a forward saved, as its backward is given it: id of the forward's record, -1 where that
shares the ``graph_id``; output; how many of that output the backward is given before this one,
where the forward was called several times."""


def pair(calls: Sequence[GeneratedCall]) -> dict[int, list[tuple[GeneratedCall, int]]]:
    """The backwards of each call of a forward, by the scope of that.

    Several where a captured backward was cut into several graphs. With each, how many later
    calls of the same forward that backward is of, too.
    """
    key = {
        c.graph.id: c.graph.graph_id
        for c in calls
        if c.graph is not None and c.graph.kind is GraphKind.FORWARD
    }
    waiting: dict[int | None, list[int]] = {}
    found: dict[int, list[tuple[GeneratedCall, int]]] = {}
    # Of each captured backward: graphs of it that have run, and the forwards' calls that it is of.
    runs: dict[str, tuple[set[int], dict[int | None, list[int]]]] = {}
    for call in calls:
        graph = call.graph
        if graph is None or graph.kind not in (GraphKind.FORWARD, GraphKind.BACKWARD):
            continue
        if graph.kind is GraphKind.FORWARD:
            if graph.graph_id is not None:
                waiting.setdefault(graph.graph_id, []).append(call.scope)
            continue
        of: dict[int | None, list[int]] = {}
        if (capture := captured_by(graph)) is not None:
            ran, of = runs.get(capture, (set(), of))
            if graph.id in ran:  # the whole backward again
                ran, of = set(), {}
            ran.add(graph.id)
            runs[capture] = ran, of
        for forward, times in _forwards(graph, key).items():
            scopes = of.setdefault(forward, [])
            while len(scopes) < times and waiting.get(forward):
                scopes.append(waiting[forward].pop())
            for nth, scope in enumerate(scopes[:times]):
                found.setdefault(scope, []).append((call, nth))
    return found


def captured_by(graph: GraphRecord) -> str | None:
    """The capture that a graph of a captured backward is of, e.g. ``!3``; None for others."""
    compile_id = graph.compile_id or ""
    return compile_id.partition("/")[0] if compile_id.startswith("!") else None


def _forwards(backward: GraphRecord, key: Mapping[int, int | None]) -> dict[int | None, int]:
    """By ``graph_id``, of how many calls of a forward ``backward`` is.

    Args:
        key: ``graph_id`` of each forward, by the id of its record.
    """
    if captured_by(backward) is None:
        return {backward.graph_id: 1}
    times: dict[int | None, int] = {}
    given = Counter(
        (v.forward_graph, v.forward_output)
        for v in backward.inputs
        if v.forward_graph in key and v.forward_output is not None
    )
    for (forward, _), count in given.items():
        graph_id = key[forward] if forward is not None else None
        times[graph_id] = max(count, times.get(graph_id, 0))
    return times


def saved_value(
    forward: GeneratedCall, output: int, backward: GeneratedCall, nth: int
) -> SavedValue:
    """What ``backward`` is given of a call that it is paired with."""
    captured = backward.graph is not None and captured_by(backward.graph) is not None
    graph = forward.graph.id if captured and forward.graph is not None else _ITS_OWN
    return graph, output, nth


def releases(backward: GeneratedCall, columns: EventColumns) -> dict[SavedValue, int]:
    """When a call of a backward releases what it was given, ns."""
    graph, program = backward.graph, backward.program
    if graph is None or program is None:
        return {}
    times = backward.times(columns).tolist()
    freed = {
        e.storage: times[i]
        for i, e in reversed([*enumerate(program.events)])
        if e.kind is EventKind.FREE
    }
    saved: dict[int, SavedValue] = {}
    given: Counter[tuple[int, int]] = Counter()
    for value in graph.inputs:
        if value.forward_output is None:
            continue
        of = _ITS_OWN if value.forward_graph is None else value.forward_graph
        key = of, value.forward_output
        saved[value.index] = (*key, given[key])
        given[key] += 1
    out: dict[SavedValue, int] = {}
    for storage in program.storages:
        for i in storage.inputs if storage.id in freed else ():
            # A graph whose metadata could not be had has programs, and no inputs.
            if (value_of := saved.get(i)) is not None:
                out[value_of] = min(freed[storage.id], out.get(value_of, freed[storage.id]))
    return out

"""When what a replayed call returns is over, where no lease says it."""

from __future__ import annotations

from collections import Counter

from memprof.profiler.model import Category, EventKind
from memprof.profiler.pairing import captured_by, pair

from .calls import GeneratedCall
from .columns import EventColumns

_ITS_OWN = -1

SavedValue = tuple[int, int, int]
"""What a forward saved, as its backward is given it: id of the forward's record, -1 where that
shares the ``graph_id``; output; how many of that output the backward is given before this one,
where the forward was called several times."""


class Ends:
    """When what a replay returns is over, where nobody knows better."""

    def __init__(self, columns: EventColumns, calls: list[GeneratedCall]) -> None:
        self.columns = columns
        self.next: dict[int, int] = {}
        """By scope: start of the next call of the same graph."""
        self._calls = calls
        self._position = {c.scope: i for i, c in enumerate(calls)}
        self._backward = pair([c.graph for c in calls])
        self._released: dict[int, dict[SavedValue, int]] = {}
        """By scope of a backward: ``_releases`` of it."""
        latest: dict[int, int] = {}
        for call in calls:
            graph = call.graph
            if graph is None:
                continue
            if graph.id in latest:
                self.next[latest[graph.id]] = int(columns.scopes.start[call.scope])
            latest[graph.id] = call.scope

    def of(self, call: GeneratedCall, outputs: tuple[int, ...], category: Category) -> int | None:
        """ns; None if it is not within the trace."""
        found = self._backward.get(self._position[call.scope], ())
        if category is not Category.ACTIVATION or not found:
            return self.next.get(call.scope)
        partners = [(self._calls[i], nth) for i, nth in found]
        # Of several graphs that one backward was cut into, the last to be given it releases it.
        released: list[int] = []
        for backward, nth in partners:
            ends = self._ends(backward)
            keys = [_saved_value(call, o, backward, nth) for o in outputs]
            released += [min(ours)] if (ours := [ends[k] for k in keys if k in ends]) else []
        return max(released or [int(self.columns.scopes.end[b.scope]) for b, _ in partners])

    def _ends(self, backward: GeneratedCall) -> dict[SavedValue, int]:
        if (found := self._released.get(backward.scope)) is None:
            found = self._released[backward.scope] = _releases(backward, self.columns)
        return found


def _saved_value(
    forward: GeneratedCall, output: int, backward: GeneratedCall, nth: int
) -> SavedValue:
    """What ``backward`` is given of a call that it is paired with."""
    captured = backward.graph is not None and captured_by(backward.graph) is not None
    graph = forward.graph.id if captured and forward.graph is not None else _ITS_OWN
    return graph, output, nth


def _releases(backward: GeneratedCall, columns: EventColumns) -> dict[SavedValue, int]:
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

"""Which calls of forwards each call of a backward belongs to.

See *saved* in Note [What is live between calls] in ``timeline.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ._units import Unit
from .model import GraphKind, GraphRecord, Profile

_NONE = -1

Mates = tuple[int, ...]
"""Units of the forwards that a call of a backward belongs to: one, unless it is captured."""


class Pairing:
    """Forwards and backwards of one call log.

    Args:
        profile: whose calls they are.
        units: all programs.
        unit_of_call: index of each call's unit, -1 for a call without a program.

    Attributes:
        partner: by call: of a backward its forwards, of a forward its one backward.
        lifetimes: ``lifetimes[unit][n]``: forwards of ``unit`` that had their backward n
            calls later.
    """

    def __init__(
        self, profile: Profile, units: Sequence[Unit], unit_of_call: Sequence[int]
    ) -> None:
        self._units = units
        self._graphs = {g.id: g for g in profile.graphs}
        self._forwards = {g.id: self._forwards_of(g) for g in profile.graphs}
        self._first_unit: dict[int, int] = {}
        forwards = {g.id: g.graph_id for g in reversed(profile.graphs) if _is_forward(g)}
        first_graph = {graph_id: g for g, graph_id in forwards.items()}
        for u in reversed(units):
            graph_id = forwards.get(u.graph.id)
            if graph_id is not None and first_graph[graph_id] == u.graph.id:
                self._first_unit[graph_id] = u.id
        self.partner: dict[int, tuple[int, ...]] = {}
        self.lifetimes: dict[int, Counter[int]] = {}
        self._pair(profile.calls.graph, unit_of_call)

    def usual_mates(self, unit: int) -> Mates:
        """For a backward: the first program of each of its forwards, where the calls that it
        belongs to are not known."""
        graph_ids = self._forwards[self._units[unit].graph.id]
        return tuple(self._first_unit[i] for i in graph_ids if i in self._first_unit)

    def _forwards_of(self, graph: GraphRecord) -> tuple[int, ...]:
        """``graph_id`` of the forwards that give a backward memory."""
        if graph.kind is not GraphKind.BACKWARD:
            return ()
        named = {v.forward_graph for v in graph.inputs if v.forward_graph is not None}
        if not named:
            return () if graph.graph_id is None else (graph.graph_id,)
        found = (self._graphs.get(i) for i in named)
        return tuple(sorted(f.graph_id for f in found if f and f.graph_id is not None))

    def _pair(self, graph_of_call: Sequence[int], unit_of_call: Sequence[int]) -> None:
        # graph_id -> bytes saved -> calls that wait
        waiting: dict[int, dict[int, list[int]]] = {}
        for k, (g, u) in enumerate(zip(graph_of_call, unit_of_call, strict=True)):
            graph = self._graphs[g]
            if _is_forward(graph):
                saved = self._units[u].saved_bytes if u != _NONE else _NONE
                waiting.setdefault(graph.graph_id or 0, {}).setdefault(saved, []).append(k)
            for graph_id in self._forwards[g]:
                stacks = waiting.get(graph_id, {})
                given = self._given(u, graph_id)
                stack = stacks.get(given) or max(stacks.values(), key=lambda s: s[-1:], default=[])
                if stack:
                    forward = stack.pop()
                    self.partner[forward] = (k,)
                    self.partner[k] = (*self.partner.get(k, ()), forward)
                    if (unit := unit_of_call[forward]) != _NONE:
                        self.lifetimes.setdefault(unit, Counter())[k - forward] += 1

    def _given(self, unit: int, graph_id: int) -> int:
        """Bytes that a program of a backward is given by one of its forwards."""
        if unit == _NONE:
            return _NONE
        return sum(
            nbytes
            for forward, nbytes in self._units[unit].given_bytes.items()
            if forward is None or self._is(forward, graph_id)
        )

    def _is(self, graph: int, graph_id: int) -> bool:
        found = self._graphs.get(graph)
        return found is not None and found.graph_id == graph_id


def _is_forward(graph: GraphRecord) -> bool:
    return graph.kind is GraphKind.FORWARD and graph.graph_id is not None

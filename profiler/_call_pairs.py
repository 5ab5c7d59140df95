"""The pairs of forwards and backwards in a call log, as the timeline needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ._programs import PreparedProgram
from .model import GraphKind, Profile
from .pairing import forwards_of, pair

_NONE = -1

Forwards = tuple[int, ...]
"""Units of the forwards whose saved memory a call of a backward takes: one, unless it is captured;
one for each call, so that a unit can be there several times."""


class Pairing:
    """Forwards and backwards of one call log; a call's unit is -1 where it has no program.

    Attributes:
        partner: by call: of a backward the forwards that had none before it, of a forward the
            first of its backwards.
        lifetimes: ``lifetimes[unit][n]``: forwards of ``unit`` that had their backward n
            calls later.
    """

    def __init__(
        self, profile: Profile, units: Sequence[PreparedProgram], unit_of_call: Sequence[int]
    ) -> None:
        self._units = units
        self._unit_of_call = unit_of_call
        self._graphs = {g.id: g for g in profile.graphs}
        self._graph_id = {g.id: g.graph_id for g in profile.graphs if g.kind is GraphKind.FORWARD}
        self._first_unit: dict[int | None, int] = {}
        for u in units:
            if u.graph.id in self._graph_id:
                self._first_unit.setdefault(u.graph.graph_id, u.id)
        self.partner: dict[int, tuple[int, ...]] = {}
        self.lifetimes: dict[int, Counter[int]] = {}
        found = pair([self._graphs[g] for g in profile.calls.graph], self._saved, self._given)
        for forward in sorted(found):
            backward = found[forward][0][0]
            self.partner[forward] = (backward,)
            self.partner[backward] = (*self.partner.get(backward, ()), forward)
            if (unit := unit_of_call[forward]) != _NONE:
                self.lifetimes.setdefault(unit, Counter())[backward - forward] += 1

    def usual_forwards(self, unit: int) -> Forwards:
        """For a backward: the first program of each of its forwards, where the calls that it
        belongs to are not known."""
        graph = self._units[unit].graph
        if graph.kind is not GraphKind.BACKWARD:
            return ()
        graph_ids = forwards_of(graph, self._graph_id)
        return tuple(self._first_unit[i] for i in graph_ids if i in self._first_unit)

    def _saved(self, call: int) -> int:
        unit = self._unit_of_call[call]
        return self._units[unit].saved_bytes if unit != _NONE else _NONE

    def _given(self, call: int, graph_id: int | None) -> int:
        """Bytes that a call of a backward is given by calls of one of its forwards."""
        unit = self._unit_of_call[call]
        if unit == _NONE:
            return _NONE
        return sum(
            nbytes
            for forward, nbytes in self._units[unit].given_bytes.items()
            if forward is None or self._graph_id.get(forward) == graph_id
        )

"""The live sets of one device, taken apart so that the page can put any of them together.

Note [How a live set is put together]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An *item* is (site, bytes, owner, hold). At instant ``i`` of a call, with ``s`` its step:

* ``lists[s.rest]``, pairs of item and count: memory that the call's program does not count;
* ``lists[s.own]``, one item for each storage that is live when the program begins;
* the first ``i`` events of ``units[s.unit]``: each takes ``before`` out and puts ``after`` in.
  -1 is nothing, ``-2 - j`` the item ``j`` of ``lists[s.own]``, which differs from step to step.

Between the call and the next, ``lists[s.between]`` is live.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from memprof.profiler.live.attribution import Attribution, Site, View
from memprof.profiler.live.live_set import Hold, LiveItem
from memprof.profiler.live.programs import PreparedProgram
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import EventKind, Storage
from memprof.profiler.views.report.failure import line_of
from memprof.profiler.views.report.sections.about import module_name

_NONE, _ENTRY = -1, -2
"""No item, and the first of those that are live when a program begins; the others are below it."""
_KNOWN: dict[str, Callable[[Site], Any]] = {
    **{name: attrgetter(name) for name in ("op", "node", "fqn", "outside")},
    "category": lambda site: site.category.value,
    "module": lambda site: module_name(site.module),
    "location": lambda site: line_of(site.frame) or None,
    "function": lambda site: site.frame and site.frame.function,
    "code": lambda site: site.frame and site.frame.code.strip(),
}
"""Fields of a site in the payload beside its place in each view."""
HOLDS = {
    Hold.CALL: "it belongs to this call: an input of it, or made by it",
    Hold.PERSISTENT: "it stays from call to call: a parameter, a buffer or optimizer state",
    Hold.SAVED: "a forward saved it and its backward has not run yet",
    Hold.HANDED_ON: "another compiled graph takes it as an input later",
}
"""Reasons why an item is live, in the page's words."""
_T = TypeVar("_T")


def numbered() -> defaultdict[Any, int]:
    """Values, each once: the number of one, in order of first appearance."""
    return defaultdict(itertools.count().__next__)


def distinct(values: Iterable[_T]) -> dict[str, list[Any]]:
    """A column that has few values again and again: each once (``of``), and their numbers."""
    each: dict[_T, int] = numbered()
    at = [each[value] for value in values]
    return {"of": list(each), "at": at}


def columns(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    """Rows as columns, each with its values (``of``) and their numbers (``at``): a tenth of the
    bytes of rows."""
    table = list(rows)
    return {name: distinct(row[i] for row in table) for i, name in enumerate(names)}


class Items:
    """Live items, lists of them, and the sites that they come from, each once and numbered. In each
    view a site has a place, by its number: a part of the view by its name, or, if it is not
    ``known``, a reason why it is in the remainder.
    """

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.rows: dict[tuple[int, int, str | None, str], int] = numbered()
        self.lists: dict[tuple[int, ...], int] = numbered()
        self._numbers: dict[int, int] = {}
        self._sites: dict[tuple[Any, ...], int] = numbered()
        self._places: dict[View, dict[tuple[str, int | None, bool], int]] = {
            v: numbered() for v in View
        }
        self._notes: dict[tuple[View, int], str] = {}

    def item(self, graph: int, storage: Storage, owner: str | None, line: int, hold: Hold) -> int:
        site = self.attribution.site(graph, storage, owner, line)
        # The attribution keeps its sites, so no other one can get this one's id.
        if id(site) not in self._numbers:
            places = [self._place(site, view) for view in View]
            values = [of(site) for of in _KNOWN.values()]
            self._numbers[id(site)] = self._sites[(*places, self._label(site), *values)]
        return self.rows[self._numbers[id(site)], storage.nbytes, owner, HOLDS[hold]]

    def of(self, x: LiveItem) -> int:
        """The number of an item; its count is not part of it."""
        return self.item(x.graph, x.storage, x.owner, x.line, x.hold)

    def pairs(self, items: Iterable[LiveItem]) -> int:
        """The number of a list of (item, count)."""
        return self.lists[tuple(n for x in items for n in (self.of(x), x.count))]

    def _label(self, site: Site) -> str:
        """Label of the graph that a site is in, "" if none of the profile made it."""
        named = self.attribution.named(site, View.GRAPH)
        return "" if named is None or named[1] is None else named[0]

    def _place(self, site: Site, view: View) -> int:
        named = self.attribution.named(site, view)
        key, graph, note = named or (site.why.get(view, "unknown"), None, "")
        number = self._places[view][key, graph, named is not None]
        self._notes.setdefault((view, number), note)
        return number

    def sites(self) -> dict[str, Any]:
        """Columns of sites; ``in_`` and a view's name is the column of places in that view."""
        places = [f"in_{view.value}" for view in View]
        return columns([*places, "label", *_KNOWN], self._sites)

    def places(self) -> dict[str, Any]:
        """Columns of the places of each view; ``below`` is what the page shows below a name."""
        return {
            view.value: columns(
                ["key", "known", "below"],
                [
                    (key, known, self._below(view, number, graph))
                    for (key, graph, known), number in found.items()
                ],
            )
            for view, found in self._places.items()
        }

    def _below(self, view: View, number: int, graph: int | None) -> tuple[str, ...]:
        note = self._notes[view, number]
        if view is View.NODE and graph is not None:
            return self.attribution.label(graph), note
        return (note,) if view is View.LINE else ()


def live_payload(timeline: Timeline, items: Items) -> dict[str, Any]:
    """Live sets of one device as JSON values, see Note [How a live set is put together]."""
    calls = timeline.profile.calls
    kinds: dict[Any, int] = numbered()
    of_calls: list[int] = []
    steps: list[dict[str, int]] = []
    for k in range(len(timeline)):
        of_calls.append(kinds[timeline.kind(k)])
        if len(kinds) == len(steps):
            continue
        live = timeline.live_at(k, 0)
        own = (items.of(x) for x in live if x.hold is Hold.CALL)
        steps.append(
            {
                "unit": timeline.unit_of_call[k],
                "rest": items.pairs(x for x in live if x.hold is not Hold.CALL),
                "own": items.lists[tuple(own)],
                "between": items.pairs(timeline.live_after(k)),
            }
        )
    peak = timeline.peak()
    return {
        "units": [_unit(u, timeline.device, items) for u in timeline.units],
        "steps": steps,
        "lists": list(items.lists),
        "items": columns(["site", "nbytes", "owner", "hold"], items.rows),
        "calls": {"graph": calls.graph, "step": of_calls},
        "peak": None if peak is None else [peak.call, peak.instant, peak.nbytes],
    }


def _unit(unit: PreparedProgram, device: str | None, items: Items) -> dict[str, Any]:
    """A program. Events of other devices stay, so that instants have the same numbers."""
    storages = unit.program.storages
    there = [s.device == device for s in storages]
    entry = (s.id for s in storages if s.at_entry and there[s.id])
    now = {storage: _ENTRY - j for j, storage in enumerate(entry)}
    before: list[int] = []
    after: list[int] = []
    for e in unit.program.events:
        s = storages[e.storage]
        old = now.pop(e.storage, _NONE)
        new = _NONE
        if e.kind is not EventKind.FREE and there[e.storage]:
            # An input that changes its name before the first line still is what it was.
            same = s.at_entry and not e.line
            new = old if same else items.item(unit.graph.id, s, e.owner, e.line, Hold.CALL)
            now[e.storage] = new
        before.append(old)
        after.append(new)
    return {
        "graph": unit.graph.id,
        "key": list(unit.program.key),
        "line": [e.line for e in unit.program.events],
        "before": before,
        "after": after,
    }

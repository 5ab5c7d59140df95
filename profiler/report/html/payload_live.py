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

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, TypeVar

from ..._programs import PreparedProgram
from ...attribution import Attribution, Site, View, module_parts
from ...live import Hold, LiveItem
from ...model import EventKind, GraphRecord, Origin, PlacedBlock, Placement, Storage
from ...timeline import Timeline
from ..failure import place
from ..sections.about import module_name

_NONE, _ENTRY = -1, -2
"""No item, and the first of those that are live when a program begins; the others are below it."""
_KNOWN: dict[str, Callable[[Site], Any]] = {
    **{name: attrgetter(name) for name in ("op", "node", "fqn", "outside", "graph")},
    "category": lambda site: site.category.value,
    "module": lambda site: module_name(site.module),
    "location": lambda site: place(site.frame) or None,
    "function": lambda site: site.frame and site.frame.function,
    "code": lambda site: site.frame and site.frame.code.strip(),
}
"""What the page has of a site beside its place in each view."""
_T = TypeVar("_T")


class Each(dict[_T, int]):
    """Values, each once: the number of one, in order of first appearance."""

    def __missing__(self, value: _T) -> int:
        self[value] = len(self)
        return self[value]


def distinct(values: Iterable[_T]) -> dict[str, list[Any]]:
    """A column that says few things again and again: each once (``of``), and their numbers."""
    each: Each[_T] = Each()
    at = [each[value] for value in values]
    return {"of": list(each), "at": at}


class Sites:
    """Describes where storages come from, each place once. In each view a site has a place, by its
    number: a part of the view by its name, or, if it is not ``known``, a reason why it is in the
    remainder.
    """

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self._numbers: dict[int, int] = {}
        self._rows: Each[tuple[int, ...]] = Each()
        self._values: Each[Any] = Each()
        self._places: dict[View, dict[tuple[str, int | None, bool], tuple[int, str]]]
        self._places = {view: {} for view in View}

    def of(self, graph: int, storage: Storage, owner: str | None, line: int) -> int:
        site = self.attribution.site(graph, storage, owner, line)
        # The attribution keeps its sites, so no other one can get this one's id.
        if id(site) not in self._numbers:
            places = (self._place(site, view) for view in View)
            values = (self._values[of(site)] for of in _KNOWN.values())
            self._numbers[id(site)] = self._rows[(*places, *values)]
        return self._numbers[id(site)]

    def _place(self, site: Site, view: View) -> int:
        named = self.attribution.named(site, view)
        key, graph, note = named or (site.why.get(view, "unknown"), None, "")
        places = self._places[view]
        return places.setdefault((key, graph, named is not None), (len(places), note))[0]

    def payload(self) -> dict[str, Any]:
        """In columns, which compress much better than rows: of each site its place in each view and
        the numbers of values that are known of it; of each place what it is."""
        columns = list(zip(*self._rows, strict=True)) or [()] * (len(View) + len(_KNOWN))
        return {
            "values": list(self._values),
            "place": dict(zip((v.value for v in View), columns, strict=False)),
            "known": dict(zip(_KNOWN, columns[len(View) :], strict=True)),
            "places": {
                view.value: {
                    "key": [key for key, _, _ in found],
                    "graph": [graph for _, graph, _ in found],
                    "known": [known for _, _, known in found],
                    "note": [note for _, note in found.values()],
                    "parts": [module_parts(k) if view is View.MODULE else () for k, _, _ in found],
                }
                for view, found in self._places.items()
            },
        }


class Items:
    """Items and lists of them, each once."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._rows: Each[tuple[int, int, str | None, str]] = Each()
        self.lists: Each[tuple[int, ...]] = Each()

    def item(self, graph: int, storage: Storage, owner: str | None, line: int, hold: Hold) -> int:
        site = self._sites.of(graph, storage, owner, line)
        return self._rows[site, storage.nbytes, owner, hold.value]

    def of(self, x: LiveItem) -> int:
        """The number of an item; its count is not part of it."""
        return self.item(x.graph, x.storage, x.owner, x.line, x.hold)

    def pairs(self, items: Iterable[LiveItem]) -> int:
        """The number of a list of (item, count)."""
        return self.lists[tuple(n for x in items for n in (self.of(x), x.count))]

    def columns(self) -> dict[str, Any]:
        columns = list(zip(*self._rows, strict=True)) or [()] * 4
        return dict(zip(("site", "nbytes", "owner", "hold"), columns, strict=True))


def live_payload(timeline: Timeline, sites: Sites, start: int) -> dict[str, Any]:
    """See Note [How a live set is put together]; times of calls are since ``start``."""
    items = Items(sites)
    calls = timeline.profile.calls
    unit_ids = {(u.graph.id, u.index): u.id for u in timeline.units}
    kinds: Each[Any] = Each()
    of_calls: list[int] = []
    steps: list[dict[str, int]] = []
    for k in range(len(timeline)):
        of_calls.append(kinds[timeline.kind(k)])
        if len(kinds) == len(steps):
            continue
        live = timeline.live_at(k, 0).items
        own = (items.of(x) for x in live if x.hold is Hold.CALL)
        steps.append(
            {
                "unit": unit_ids.get((calls.graph[k], calls.program[k]), -1),
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
        "items": items.columns(),
        "calls": {
            "graph": calls.graph,
            "step": of_calls,
            "start_ns": [t - start for t in calls.start_ns],
            "duration_ns": [e - s for s, e in zip(calls.start_ns, calls.end_ns, strict=True)],
        },
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
        before.append(now.pop(e.storage, _NONE))
        after.append(_NONE)
        if e.kind is not EventKind.FREE and there[e.storage]:
            # An input that changes its name before the first line still is what it was.
            same = s.at_entry and not e.line
            new = before[-1] if same else items.item(unit.graph.id, s, e.owner, e.line, Hold.CALL)
            after[-1] = now[e.storage] = new
    return {
        "graph": unit.graph.id,
        "key": list(unit.program.key),
        "line": [e.line for e in unit.program.events],
        "before": before,
        "after": after,
    }


def placement_payload(graph: GraphRecord, placement: Placement, sites: Sites) -> dict[str, Any]:
    """Returns where a graph's replays have their memory: each segment with its bytes and the
    highest that is ever used, each block with its site."""
    names = ("address", "nbytes", "begin", "end", "node", "owner")
    ends = [(b.address, b.address + b.nbytes) for b in placement.blocks]
    sizes = f" for sizes {', '.join(map(str, placement.key))}" if placement.key else ""
    return {
        "graph": graph.id,
        "name": f"{graph.label}{sizes}, recording #{placement.node} on {placement.pool}",
        "key": placement.key,
        "segments": [
            (start, n, max((e - start for b, e in ends if start <= b < start + n), default=0))
            for start, n in placement.segments
        ],
        "lines": placement.lines,
        "blocks": {
            **{name: [getattr(b, name) for b in placement.blocks] for name in names},
            "site": [_site(b, placement, sites) for b in placement.blocks],
        },
    }


def _site(b: PlacedBlock, placement: Placement, sites: Sites) -> int:
    # What attribution asks of a storage: where it came in, if no code made it.
    origin = Origin.BUFFER if b.line else Origin.INPUT
    device = placement.pool.partition(" ")[0]
    name = b.owner or ""
    storage = Storage(0, b.nbytes, device, origin, name, b.category, inputs=b.inputs)
    return sites.of(b.graph, storage, b.owner, b.line)

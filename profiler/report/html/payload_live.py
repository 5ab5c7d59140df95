"""The live sets of one device, taken apart so that the page can put any of them together.

Note [How a live set is put together]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An *item* is (site, bytes, owner, hold). At instant ``i`` of call ``k``, with ``s = steps[k]``:

* ``lists[rest[s]]``, pairs of item and count: memory that the call's program does not count;
* ``lists[own[s]]``: one item for each storage that is live when the program begins, in the
  order of ``units[unit[s]].entry``;
* of these, and of what the program makes, what the first ``i`` of its events leave: ``alloc``
  puts an item at a storage, ``reuse`` another one in its place, ``free`` takes it away.

Between call ``k`` and the next, ``lists[between[s]]`` is live. ``Timeline.live_at`` and
``live_after`` say the same, and a test compares them at every instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from ..._programs import PreparedProgram
from ...attribution import Attribution, Site, View
from ...live import Hold, LiveItem
from ...model import (
    Category,
    EventKind,
    Origin,
    PlacedBlock,
    Placement,
    SourceFrame,
    Storage,
)
from ...timeline import Timeline
from ..format import shorten_path

EVENT_KINDS = (EventKind.ALLOC, EventKind.FREE, EventKind.REUSE)
"""An event's kind in the payload is its position here."""
HOLDS = tuple(Hold)
_HOLD = {h: i for i, h in enumerate(HOLDS)}
_KEEP = -1
"""Item of a reuse that leaves a storage as it is."""
_VIEWS = tuple(View)
_CATEGORY = {c: i for i, c in enumerate(Category)}
_T = TypeVar("_T")


class Each(dict[_T, int]):
    """Values, each once: the number of one, in order of first appearance."""

    def __missing__(self, value: _T) -> int:
        self[value] = len(self)
        return self[value]


class Strings:
    """Text, each once; calling it gives the number of one."""

    def __init__(self) -> None:
        self._numbers: Each[str] = Each()

    def __call__(self, text: str | None) -> int:
        """The number of ``text``, -1 for None."""
        return -1 if text is None else self._numbers[text]

    @property
    def all(self) -> list[str]:
        """By number."""
        return list(self._numbers)


class Sites:
    """Where storages come from, each place once.

    In each view a site has a place: the number of a name (``k >= 0``: a part, and
    ``names[view][k]``), or ``-1 - k`` for a reason (``reasons[k]``) why it is in the remainder.
    """

    def __init__(self, attribution: Attribution, strings: Strings) -> None:
        self.attribution = attribution
        self._strings = strings
        self._numbers: dict[int, int] = {}
        self._rows: Each[tuple[int, ...]] = Each()
        self._frames: Each[SourceFrame] = Each()
        self._names: dict[View, Each[tuple[str, int | None]]] = {v: Each() for v in View}
        self._notes: dict[View, dict[tuple[str, int | None], str]] = {v: {} for v in View}
        self._reasons: Each[str] = Each()

    def of(self, graph: int, storage: Storage, owner: str | None, line: int) -> int:
        """The number of the site of a storage."""
        site = self.attribution.site(graph, storage, owner, line)
        # The attribution keeps its sites, so no other one can get this one's id.
        number = self._numbers.get(id(site))
        if number is None:
            number = self._numbers[id(site)] = self._number(site)
        return number

    def _number(self, site: Site) -> int:
        return self._rows[
            (
                _CATEGORY[site.category],
                *[self._place(site, view) for view in _VIEWS],
                self._strings(site.op),
                -1 if site.frame is None else self._frames[site.frame],
                self._strings(site.fqn),
                self._strings(site.outside),
                self._strings(site.module),
                site.graph,
            )
        ]

    @property
    def frames(self) -> list[list[int]]:
        """Source lines by number: file, line, function and code, texts by their numbers."""
        s = self._strings
        return [
            [s(shorten_path(f.file)), f.line, s(f.function), s(f.code.strip())]
            for f in self._frames
        ]

    def columns(self) -> dict[str, Any]:
        """All sites, one entry a site in each column, and what places mean."""
        keys = ("category", *(f"by_{v.value}" for v in View))
        keys += ("op", "frame", "fqn", "outside", "module", "graph")
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in keys)
        s = self._strings
        return {
            **{key: list(column) for key, column in zip(keys, columns, strict=True)},
            "names": {
                v.value: {
                    "key": [s(key) for key, _ in self._names[v]],
                    "graph": [-1 if graph is None else graph for _, graph in self._names[v]],
                    "note": [s(note) for note in self._notes[v].values()],
                }
                for v in View
            },
            "reasons": [s(r) for r in self._reasons],
        }

    def _place(self, site: Site, view: View) -> int:
        named = self.attribution.named(site, view)
        if named is None:
            return -1 - self._reasons[site.why.get(view, "unknown")]
        key, graph, note = named
        self._notes[view].setdefault((key, graph), note)
        return self._names[view][key, graph]


class Items:
    """Items and lists of them, each once."""

    def __init__(self, sites: Sites, strings: Strings) -> None:
        self._sites = sites
        self._strings = strings
        self._rows: Each[tuple[int, int, int, int]] = Each()
        self._known: dict[tuple[int, int, str | None, int, Hold], int] = {}
        self._lists: Each[tuple[int, ...]] = Each()

    def item(self, x: LiveItem) -> int:
        """The number of an item; its count is not part of it."""
        # Profiles keep their storages: no other one can get this one's id.
        key = (x.graph, id(x.storage), x.owner, x.line, x.hold)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.new(x.graph, x.storage, x.owner, x.line, x.hold)
        return found

    def new(self, graph: int, storage: Storage, owner: str | None, line: int, hold: Hold) -> int:
        """The number of the item that a storage is with this owner."""
        row = (
            self._sites.of(graph, storage, owner, line),
            storage.nbytes,
            self._strings(owner),
            _HOLD[hold],
        )
        return self._rows[row]

    def pairs(self, items: Iterable[LiveItem]) -> int:
        """The number of a list of (item, count)."""
        return self.list(n for x in items for n in (self.item(x), x.count))

    def list(self, numbers: Iterable[int]) -> int:
        """The number of a list."""
        return self._lists[tuple(numbers)]

    @property
    def lists(self) -> Sequence[Sequence[int]]:
        """By number."""
        return [[*row] for row in self._lists]

    def columns(self) -> dict[str, Any]:
        """All items, one entry an item in each column."""
        keys = ("site", "nbytes", "owner", "hold")
        columns = zip(*self._rows, strict=True) if self._rows else ([] for _ in keys)
        return {key: list(column) for key, column in zip(keys, columns, strict=True)}


def live_payload(timeline: Timeline, sites: Sites, strings: Strings, start: int) -> dict[str, Any]:
    """The timeline of one device, see Note [How a live set is put together]; times of calls are
    since ``start``."""
    items = Items(sites, strings)
    calls = timeline.profile.calls
    unit_ids = {(u.graph.id, u.index): u.id for u in timeline.units}
    kinds = [timeline.kind(k) for k in range(len(timeline))]
    first: dict[int, int] = {}
    for k, kind in enumerate(kinds):
        first.setdefault(kind, k)
    # Numbered from 0 in the order of their first call.
    number = {kind: i for i, kind in enumerate(first)}
    columns: dict[str, list[int]] = {k: [] for k in ("unit", "rest", "own", "between")}
    for k in first.values():
        unit = unit_ids.get((calls.graph[k], calls.program[k]), -1)
        live = timeline.live_at(k, 0)
        own = [x for x in live.items if x.hold is Hold.CALL]
        columns["unit"].append(unit)
        columns["rest"].append(items.pairs(x for x in live.items if x.hold is not Hold.CALL))
        columns["own"].append(items.list(items.item(x) for x in own))
        columns["between"].append(items.pairs(timeline.live_after(k)))
    peak = timeline.peak()
    return {
        "units": [_unit(u, timeline.device, items, strings) for u in timeline.units],
        "steps": columns,
        "lists": items.lists,
        "items": items.columns(),
        "calls": {
            "graph": calls.graph,
            "step": [number[kind] for kind in kinds],
            "start_ns": [t - start for t in calls.start_ns],
            "duration_ns": [e - s for s, e in zip(calls.start_ns, calls.end_ns, strict=True)],
        },
        "peak": None if peak is None else [peak.call, peak.instant, peak.nbytes],
    }


def _unit(
    unit: PreparedProgram, device: str | None, items: Items, strings: Strings
) -> dict[str, Any]:
    """A program. Events of other devices stay, so that instants have the same numbers."""
    storages = unit.program.storages
    there = [device is None or s.device == device for s in storages]
    columns: dict[str, list[int]] = {k: [] for k in ("kind", "storage", "line", "item")}
    for e in unit.program.events:
        item = _KEEP
        if e.kind is not EventKind.FREE and there[e.storage]:
            s = storages[e.storage]
            # An input that changes its name before the first line still is what it was.
            if e.line or not s.at_entry:
                item = items.new(unit.graph.id, s, e.owner, e.line, Hold.CALL)
        columns["kind"].append(EVENT_KINDS.index(e.kind))
        columns["storage"].append(e.storage)
        columns["line"].append(e.line)
        columns["item"].append(item)
    return {
        "graph": unit.graph.id,
        "key": list(unit.program.key),
        "entry": [s.id for s in storages if s.at_entry and there[s.id]],
        "storages": len(storages),
        "events": columns,
    }


def placement_payload(
    graph: int, placement: Placement, sites: Sites, strings: Strings
) -> dict[str, Any]:
    """Where a graph's replays have their memory; each block with its site."""
    return {
        "graph": graph,
        "pool": placement.pool,
        "key": list(placement.key),
        "node": placement.node,
        "segments": [list(s) for s in placement.segments],
        "lines": list(placement.lines),
        "blocks": {
            **{
                name: [getattr(b, name) for b in placement.blocks]
                for name in ("address", "nbytes", "begin", "end", "node")
            },
            "owner": [strings(b.owner) for b in placement.blocks],
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

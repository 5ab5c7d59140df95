"""What grew from one profile to another, and which modules and nodes it is due to.

Note [How places are matched]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
FX names number operators from the start of the graph: one more operator renames all that follow.
So a node is matched by what a person would point at: module path, operator, and the source line,
by its file and its *text* (an edit above it moves its number). Nodes that agree in all of these
(a line that runs in a loop) are counted together, in both profiles. Memory that no compiled code
made is matched by its kind and name, e.g. ``(parameter) blocks.0.up.weight``.

Note [What is compared]
~~~~~~~~~~~~~~~~~~~~~~~
* *peak*: the live set at the peak of known live memory;
* *saved*: what forwards leave for their backwards, all forwards of one step;
* *allocated*: what compiled code allocates in one step, all allocations added up;
* *pool*: the largest size of the pool of graph trees, by function what its recordings added.

A profile does not know what a training step is. One step is taken to be as many calls as come to
each call of the graph that is called most often among the forwards (else among all graphs), so
graphs that are called less often count by their share. Each graph counts with its most called
program.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .attribution import Attribution, Site, View
from .devices import main_device, most_called, timelines
from .live import Hold, LiveItem
from .model import EventKind, GraphKind, Profile
from .timeline import Timeline
from .trees import graphed_functions, pool_bytes

__all__ = ["Change", "ProfileDiff", "Quantity", "compare"]


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes of one place before and after.

    Attributes:
        key: its name.
        before, after: bytes, 0 where it is not there.
    """

    key: str
    before: int
    after: int

    @property
    def change(self) -> int:
        """By how much it grew."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that is compared, see Note [What is compared].

    Attributes:
        name: ``peak``, ``saved``, ``allocated`` or ``pool``.
        before, after: bytes.
        views: changes by ``category``, ``module`` and ``node`` (of a pool by ``function``),
            largest change first; in each the changes add up to that of the quantity, but for
            a pool, whose growth recordings do not explain alone. Places that did not change
            are left out.
    """

    name: str
    before: int
    after: int
    views: dict[str, tuple[Change, ...]]

    @property
    def change(self) -> int:
        """By how much it grew."""
        return self.after - self.before

    @property
    def growth(self) -> float:
        """The same as a part of ``before``; infinite where there was nothing."""
        if not self.change:
            return 0.0
        return self.change / self.before if self.before else float("inf")


@dataclass(frozen=True, slots=True)
class ProfileDiff:
    """Two profiles side by side.

    Attributes:
        devices: whose memory was compared, before and after.
        quantities: in the order of Note [What is compared].
    """

    devices: tuple[str, str]
    quantities: tuple[Quantity, ...]


Bytes = Counter[str]


@dataclass(frozen=True, slots=True)
class _Measured:
    total: int
    views: dict[str, Bytes]


def compare(before: Profile, after: Profile, device: str | None = None) -> ProfileDiff:
    """Compare two profiles.

    Args:
        before, after: valid ones.
        device: whose memory, in both; by default the main one of each.

    Raises:
        ValueError: no program of one of them uses ``device``.
    """
    sides = []
    devices = []
    for profile in (before, after):
        found = timelines(profile)
        name = main_device(found, device)
        devices.append(name)
        sides.append(_measure(found[name], name))
    a, b = sides
    return ProfileDiff(
        (devices[0], devices[1]),
        tuple(_quantity(name, a[name], b[name]) for name in a),
    )


def _quantity(name: str, a: _Measured, b: _Measured) -> Quantity:
    views = {}
    for view in a.views:
        old, new = a.views[view], b.views[view]
        changes = [Change(key, old[key], new[key]) for key in {**old, **new}]
        changed = [c for c in changes if c.change]
        views[view] = tuple(sorted(changed, key=lambda c: (-abs(c.change), c.key)))
    return Quantity(name, a.total, b.total, views)


def _measure(timeline: Timeline, device: str) -> dict[str, _Measured]:
    attribution = Attribution(timeline.profile)
    at = timeline.peak()
    live = timeline.live_at(at.call, at.instant).items if at else ()
    saved: list[tuple[LiveItem, float]] = []
    allocated: list[tuple[LiveItem, float]] = []
    for unit_id, weight in _per_step(timeline).items():
        unit = timeline.units[unit_id]
        for carried in unit.saved.values():
            saved.append((carried.live(), weight))
        for event in unit.program.events:
            storage = unit.program.storages[event.storage]
            if event.kind is EventKind.ALLOC and storage.device == device:
                item = LiveItem(storage, unit.graph.id, event.owner, event.line, Hold.CALL)
                allocated.append((item, weight))
    functions = graphed_functions(timeline.profile.ledger)
    pool: Bytes = Counter()
    for f in functions:
        if f.device == device:
            pool[f.function] += f.marginal_bytes
    return {
        "peak": _by_place(attribution, ((item, 1.0) for item in live)),
        "saved": _by_place(attribution, saved),
        "allocated": _by_place(attribution, allocated),
        "pool": _Measured(pool_bytes(timeline.profile.ledger).get(device, 0), {"function": pool}),
    }


def _per_step(timeline: Timeline) -> dict[int, float]:
    """Unit of the most called program of each graph → its graph's calls a step."""
    calls = timeline.profile.calls
    by_graph = Counter(calls.graph)
    forwards = {g.id for g in timeline.profile.graphs if g.kind is GraphKind.FORWARD}
    steps = max((n for g, n in by_graph.items() if g in forwards), default=0)
    steps = steps or max(by_graph.values(), default=1)
    programs = Counter(zip(calls.graph, calls.program, strict=True))
    return {
        unit: by_graph[graph] / steps
        for graph, unit in most_called(timeline).items()
        if programs[graph, timeline.units[unit].index]
    }


def _by_place(attribution: Attribution, items: Iterable[tuple[LiveItem, float]]) -> _Measured:
    # Exact sums: shares of steps are rounded once a place, so views may differ by a byte or two.
    sums: dict[str, dict[str, float]] = {"category": {}, "module": {}, "node": {}}
    total = 0.0
    for item, weight in items:
        nbytes = item.nbytes * weight
        if not nbytes:
            continue
        total += nbytes
        site = attribution.site(item.graph, item.storage, item.owner, item.line)
        for view, key in _keys(attribution, site):
            sums[view][key] = sums[view].get(key, 0.0) + nbytes
    return _Measured(
        round(total),
        {view: Counter({k: round(n) for k, n in found.items()}) for view, found in sums.items()},
    )


def _keys(attribution: Attribution, site: Site) -> Iterator[tuple[str, str]]:
    yield "category", site.category.label
    named = attribution.named(site, View.MODULE)
    unknown = f"(unattributed: {site.why.get(View.MODULE, 'unknown')})"
    module = named[0] or "(root)" if named else unknown
    yield "module", module
    if site.outside:
        yield "node", f"({site.outside}) {site.fqn or ''}".rstrip()
        return
    place = "?"
    if site.frame is not None:
        code = " ".join(site.frame.code.split())
        name = os.path.basename(site.frame.file)
        place = f"{name}: {code}" if code else f"{name}:{site.frame.line}"
    op = (site.op or site.node or "?").removeprefix("aten.").removesuffix(".default")
    yield "node", f"{op} in {module} at {place}"

"""Growth from one profile to another, and the modules and nodes that it is due to.

Note [How places are matched]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
FX names number operators from the start of the graph: one more operator renames all that follow.
So a node is matched by what a person would point at: module path, operator, and the source line,
by its file and its *text* (an edit above it moves its number). Nodes that agree in all of these
are counted together. Memory that no compiled code made is matched by its kind and name, e.g.
``(parameter) blocks.0.up.weight``.

Note [What is compared]
~~~~~~~~~~~~~~~~~~~~~~~
* *peak*: the live set at the peak of known live memory;
* *saved*: what forwards leave for their backwards, all forwards of one step;
* *allocated*: what compiled code allocates in one step, all allocations added up;
* *pool*: the largest size of the pool of graph trees, by function what its recordings added;
* *reserved*: all that the allocator had from a device, from accounts: at the fullest instant, where
  somebody watched; and *reserved end*, at the ends of sessions that did not.

A tracker's record is not compared: a report of each has its peaks and what remained.

Each part is compared if both profiles have it (code that was compiled on one side alone has
grown from nothing); nothing in common is an error. Of compiled code the main device of one is
compared with that of the other, be it another one, and every further accelerator with itself; the
CPU beside an accelerator only if it is asked for: a few bytes there come and go.

One step is taken to be as many calls as come to each call of the graph that is called most often
among the forwards (else among all graphs), so graphs that are called less often count by their
share. Each graph counts with its most called program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from memprof.profiler.live.attribution import Attribution, Site, View
from memprof.profiler.live.devices import (
    check_device,
    devices_of,
    known_devices,
    main_device,
    most_called,
    timelines,
)
from memprof.profiler.live.live_set import Hold, LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.live.trees import REST, graphed_functions, pool_bytes, pool_rest
from memprof.profiler.model import EventKind, GraphKind, Profile

from .diff_model import ProfileDiff, Quantity, changes, place_of
from .diff_parts import account_changes

_Measured = tuple[int, dict[str, Counter[str]]]
"""Bytes in all, and by view the bytes of each place."""


class NothingToCompare(ValueError):
    """Two profiles have nothing in common that could be compared."""


def compare(before: Profile, after: Profile, device: str | None = None) -> ProfileDiff:
    """Compare two profiles in every part that both have.

    By default of compiled code the main device of each is compared and every other accelerator.

    Raises:
        NothingToCompare: they have no part in common.
        ValueError: nothing in one of them has memory on ``device``.
    """
    for profile in (before, after):
        if present := known_devices(profile):
            check_device(device, present)
    devices, quantities = _compiled(before, after, device)
    reserved, notes = account_changes(before, after)
    quantities += (q for q in reserved if device in (None, q.device))
    for part, had, has in (
        ("compiled graphs", bool(before.graphs), bool(after.graphs)),
        ("accounts of devices", bool(before.accounts), bool(after.accounts)),
    ):
        if had != has:
            notes.append(f"{part}: only {'before' if had else 'after'}")
    if not quantities:
        only = f" ({'; '.join(notes)})" if notes else ""
        raise NothingToCompare(
            f"there is nothing to compare{only}: take both profiles in the same way, of a run "
            "that compiles or is simulated"
        )
    return ProfileDiff(devices, tuple(quantities), tuple(notes))


def _compiled(
    before: Profile, after: Profile, device: str | None
) -> tuple[tuple[str, str], list[Quantity]]:
    """Devices compared, and quantities of compiled code; empty if neither profile has any, or none
    on ``device``."""
    wanted = [bool(p.graphs) and device in (None, *devices_of(p)) for p in (before, after)]
    if not any(wanted):
        return ("", ""), []
    found = [timelines(profile) for profile in (before, after)]
    mains = [main_device(f) if device is None else device for f in found]
    pairs = [(mains[0], mains[1], "")]
    if device is None:
        alone = mains[0] not in found[1] and mains[1] not in found[0]
        compared = set(mains) if alone or mains[0] == mains[1] else set()
        more = sorted(set().union(*found) - compared - {"cpu"})
        pairs += [(name, name, name) for name in more]
    quantities: list[Quantity] = []
    for *names, of in pairs:
        a, b = (
            _measure(f.get(name) or Timeline(profile, name), name)
            for f, profile, name in zip(found, (before, after), names, strict=True)
        )
        for name, (old, had) in a.items():
            new, has = b[name]
            if name == "pool" and not old and not new:
                continue
            views = {view: changes(had[view], has[view]) for view in had}
            quantities.append(Quantity(name, old, new, views, of))
    return (mains[0], mains[1]), quantities


def _measure(timeline: Timeline, device: str) -> dict[str, _Measured]:
    attribution = Attribution(timeline.profile)
    saved: list[tuple[LiveItem, float]] = []
    allocated: list[tuple[LiveItem, float]] = []
    for unit_id, weight in _per_step(timeline).items():
        unit = timeline.units[unit_id]
        saved += ((item, weight) for item in unit.saved.values())
        for event in unit.program.events:
            storage = unit.program.storages[event.storage]
            if event.kind is EventKind.ALLOC and storage.device == device:
                item = LiveItem(storage, unit.graph.id, event.owner, event.line, Hold.CALL)
                allocated.append((item, weight))
    functions = graphed_functions(timeline.profile.ledger)
    pool: Counter[str] = Counter()
    for f in functions:
        if f.device == device:
            pool[f.function] += f.marginal_bytes
    pools = pool_bytes(timeline.profile.ledger)
    pool[REST] += pool_rest(functions, pools).get(device, 0)
    return {
        "peak": _by_place(attribution, ((item, 1.0) for item in timeline.at_peak())),
        "saved": _by_place(attribution, saved),
        "allocated": _by_place(attribution, allocated),
        "pool": (pools.get(device, 0), {"function": pool}),
    }


def _per_step(timeline: Timeline) -> dict[int, float]:
    """Unit of the most called program of each graph → its graph's calls a step."""
    by_graph = Counter(timeline.profile.calls.graph)
    forwards = {g.id for g in timeline.profile.graphs if g.kind is GraphKind.FORWARD}
    steps = max((n for g, n in by_graph.items() if g in forwards), default=0)
    steps = steps or max(by_graph.values(), default=1)
    called = set(timeline.unit_of_call)
    return {
        unit: by_graph[graph] / steps
        for graph, unit in most_called(timeline).items()
        if unit in called
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
        site = attribution.site_of(item)
        for view, key in _keys(attribution, site):
            sums[view][key] = sums[view].get(key, 0.0) + nbytes
    views = {view: Counter({k: round(n) for k, n in found.items()}) for view, found in sums.items()}
    return round(total), views


def _keys(attribution: Attribution, site: Site) -> Iterator[tuple[str, str]]:
    yield "category", site.category.label
    named = attribution.named(site, View.MODULE)
    unknown = f"(unattributed: {site.why.get(View.MODULE, 'unknown')})"
    module = named[0] or "(root)" if named else unknown
    yield "module", module
    if site.outside:
        yield "node", f"({site.outside}) {site.fqn or ''}".rstrip()
        return
    yield "node", f"{_op(site)} in {module} at {place_of(site.frame)}"


def _op(site: Site) -> str:
    return (site.op or site.node or "?").removeprefix("aten.").removesuffix(".default")

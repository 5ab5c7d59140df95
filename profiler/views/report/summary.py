"""Figures of a report, as data: ``text.py`` prints them, ``memprof report --json`` writes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, get_type_hints

from memprof.profiler import model
from memprof.profiler.live.attribution import (
    Attribution,
    Breakdown,
    Coverage,
    View,
)
from memprof.profiler.live.devices import main_device, most_called, peak_bytes, timelines
from memprof.profiler.live.growth import growth
from memprof.profiler.live.live_set import UnobservedCalls
from memprof.profiler.live.pairing import forwards_that_wait
from memprof.profiler.live.timeline import WARM_UPS, Timeline
from memprof.profiler.live.trees import (
    GraphedFunction,
    graphed_functions,
    pool_bytes,
)
from memprof.profiler.views.advice import Finding, advise

from . import parts

_MADE = (model.LedgerKind.COMPILED, model.LedgerKind.CACHE_HIT, model.LedgerKind.RECOMPILED)


@dataclass(frozen=True, slots=True)
class LivePeak:
    """The instant with the most known live bytes."""

    nbytes: int  # live bytes
    call: int  # index in the call log, from 0
    instant: int  # of the call's program
    graph: str  # label of the graph that ran
    after_ns: int  # time from the start of the first logged call to the start of this one
    line: int = 0  # of the generated code, 0 at the entry of the call
    statement: str = ""  # text of that line, "" if not known
    node: str | None = None  # FX node whose memory came to life last, None if not known
    frame: model.SourceFrame | None = None  # user code of that node


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One compiled graph. Bytes are those of its most called program."""

    # id, label, kind: of the graph
    id: int
    label: str
    kind: str
    calls: int  # in the log
    programs: int  # number of observed programs
    median_ns: float | None  # of a call, None without calls
    allocated: int | None  # bytes that a call allocates, all allocations added up
    peak: int | None  # the most bytes live inside a call, inputs included
    saved: int | None  # bytes left for the backward
    unobserved: str | None  # why some calls have no program, None if all have
    waiting: int  # calls of a forward that had no backward


@dataclass(frozen=True, slots=True)
class Reason:
    reason: str
    count: int
    graphs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Counts by kind of entry, and the reasons of everything that did not go to plan."""

    counts: dict[str, int]
    recompiled: tuple[Reason, ...]
    not_observed: tuple[Reason, ...]
    fallbacks: tuple[Reason, ...]
    not_graphed: tuple[Reason, ...]


@dataclass(slots=True)
class Summary:
    """Figures of a report on one profile."""

    profile: model.Profile  # what it is about
    device: str  # whose memory it is about
    device_peaks: dict[str, int]  # bytes, for each device that programs use
    graphs: int
    calls: int
    dropped_calls: int
    unobserved_calls: int
    span_ns: int  # from the start of the first logged call to the end of the last
    peak: LivePeak | None  # None without calls
    views: dict[View, Breakdown]  # the live set at the peak
    table: list[GraphRow]
    ledger: LedgerSummary
    coverage: Coverage  # of all programs' allocations, each program once
    kept_bytes: int  # the most that libraries allocated in an observed call and did not give back
    without_scratch: int  # programs in which scratch memory inside kernels was not measured
    trees: list[GraphedFunction]  # functions that run in graph trees
    pools: dict[str, int]  # bytes of their pools at their largest, by device
    at_peak: list[parts.DevicePeak]  # what was reserved at the peak of devices that nobody watched
    unobserved: list[UnobservedCalls]  # by graph
    dataflow: list[parts.DataFlowPeak]  # peaks of the data-flow profile, by device
    advice: list[Finding]  # what could be changed, most bytes first
    growth: list[model.Growth]  # what is held across steps and grows, most a step first

    def figures(self) -> dict[str, Any]:
        """Data of ``memprof report --json``, by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "profile"}
        return {name: getattr(self.profile, name) for name in _OF_PROFILE} | own

    @staticmethod
    def types_of_figures() -> dict[str, Any]:
        """Types of ``figures``, by name."""
        own, whole = get_type_hints(Summary), get_type_hints(model.Profile, include_extras=True)
        del own["profile"]
        return {name: whole[name] for name in _OF_PROFILE} | own


_OF_PROFILE = (
    "memprof",
    "torch",
    "python",
    "machine",
    "created_ns",
    "options",
    "process",
    "complete",
    "accounts",
    "graph_pools",
    "step_time",
    "left_out",
)


def summarize(
    profile: model.Profile,
    device: str | None = None,
    found: dict[str, Timeline] | None = None,
    attribution: Attribution | None = None,
) -> Summary:
    """Everything a report says about a valid profile, and the memory of ``device``; by default an
    accelerator's if any is used, the one with the highest peak. ``found`` are its timelines, if
    they are there already, as is ``attribution``.

    Raises:
        ValueError: no program uses ``device``.
    """
    found = found or timelines(profile)
    device = main_device(found, device)
    timeline = found[device]
    attribution = attribution or Attribution(profile)
    calls = profile.calls
    unobserved = timeline.unobserved()
    at_peak = timeline.at_peak()
    views = {view: attribution.breakdown(at_peak, view) for view in View}
    return Summary(
        profile=profile,
        device=device,
        peak=_peak(timeline, attribution),
        views=views,
        table=_graph_rows(timeline),
        coverage=attribution.coverage((u.graph, u.program) for u in timeline.units),
        device_peaks={d: peak_bytes(t) for d, t in found.items()},
        graphs=len(profile.graphs),
        calls=len(calls),
        dropped_calls=calls.dropped,
        unobserved_calls=sum(u.calls for u in unobserved),
        span_ns=max(calls.end_ns) - min(calls.start_ns) if len(calls) else 0,
        ledger=_ledger(profile),
        # Not the sum: a workspace that is given back is asked for again in other programs.
        kept_bytes=max((p.kept_bytes for g in profile.graphs for p in g.programs), default=0),
        without_scratch=sum(not p.internal_observed for g in profile.graphs for p in g.programs),
        trees=graphed_functions(profile.ledger, profile.graphs),
        pools=pool_bytes(profile.ledger),
        unobserved=unobserved,
        dataflow=parts.data_flow_peaks(profile),
        at_peak=list(_device_peaks(profile, found, attribution)),
        advice=advise(timeline, attribution),
        growth=growth(profile),
    )


def _device_peaks(
    profile: model.Profile, found: Mapping[str, Timeline], attribution: Attribution
) -> Iterator[parts.DevicePeak]:
    every = _all_observed(profile, found)
    for account in profile.accounts:
        timeline = found.get(account.device)
        at = timeline.peak() if timeline is not None else None
        if not account.present or timeline is None or at is None:
            continue
        live = attribution.breakdown(timeline.at_peak(), View.CATEGORY)
        compiled = {model.Category(part.key): part.nbytes for part in live.parts}
        graph = profile.graph(profile.calls.graph[at.call])
        kept = graph.programs[profile.calls.program[at.call]].kept_bytes
        if peak := parts.device_peak(account, compiled, kept, all_observed=every):
            yield peak


def _all_observed(profile: model.Profile, found: Mapping[str, Timeline]) -> bool:
    """Whether the memory of every compiled call of the process is known, also what it kept."""
    compiled = {e.graph for e in profile.ledger if e.kind in _MADE}
    return (
        not profile.calls.dropped
        # Else it may have been called before the session.
        and all(g in compiled for g in set(profile.calls.graph))
        and not any(e.kind is model.LedgerKind.FALLBACK for e in profile.ledger)
        and all(u.reason == WARM_UPS for t in found.values() for u in t.unobserved())
        and not forwards_that_wait(profile)
    )


def _peak(timeline: Timeline, attribution: Attribution) -> LivePeak | None:
    at = timeline.peak()
    if at is None:
        return None
    calls = timeline.profile.calls
    graph = timeline.profile.graph(calls.graph[at.call])
    after_ns = calls.start_ns[at.call] - min(calls.start_ns)
    peak = LivePeak(at.nbytes, at.call, at.instant, graph.label, after_ns)
    if not at.instant:
        return peak
    program = graph.programs[calls.program[at.call]]
    event = program.events[at.instant - 1]
    statement = next((s.text for s in graph.statements if s.line == event.line), "")
    site = attribution.site(graph.id, program.storages[event.storage], event.owner, event.line)
    return replace(peak, line=event.line, statement=statement, node=site.node, frame=site.frame)


def _graph_rows(timeline: Timeline) -> list[GraphRow]:
    reasons = {u.graph: u.reason for u in timeline.unobserved()}
    calls = timeline.profile.calls
    times: defaultdict[int, list[int]] = defaultdict(list)
    for g, start, end in zip(calls.graph, calls.start_ns, calls.end_ns, strict=True):
        times[g].append(end - start)
    best, waiting = most_called(timeline), forwards_that_wait(timeline.profile)
    rows = []
    for graph in timeline.profile.graphs:
        unit = timeline.units[best[graph.id]] if graph.id in best else None
        ns = times[graph.id]
        rows.append(
            GraphRow(
                id=graph.id,
                label=graph.label,
                kind=graph.kind.value,
                calls=len(ns),
                programs=len(graph.programs),
                median_ns=median(ns) if ns else None,
                allocated=unit.program.allocated_bytes if unit else None,
                peak=unit.peak_bytes if unit else None,
                saved=sum(i.storage.nbytes for i in unit.saved.values()) if unit else None,
                unobserved=reasons.get(graph.id) or (None if unit else graph.unobservable),
                waiting=waiting[graph.id],
            )
        )
    return rows


def _ledger(profile: model.Profile) -> LedgerSummary:
    labels = {g.id: g.label for g in profile.graphs}
    found: dict[model.LedgerKind, dict[str, list[model.LedgerEntry]]] = {
        kind: {} for kind in model.LedgerKind
    }
    for e in profile.ledger:
        found[e.kind].setdefault(e.reason, []).append(e)

    def reasons(kind: model.LedgerKind) -> tuple[Reason, ...]:
        every = []
        for reason, entries in found[kind].items():
            graphs = dict.fromkeys(e.graph for e in entries if e.graph is not None)
            named = tuple(labels[g] for g in graphs)
            every.append(Reason(reason, sum(e.count for e in entries), named))
        return tuple(sorted(every, key=lambda r: (-r.count, r.reason)))

    return LedgerSummary(
        counts={k.value: sum(r.count for r in reasons(k)) for k in model.LedgerKind},
        recompiled=reasons(model.LedgerKind.RECOMPILED),
        not_observed=reasons(model.LedgerKind.NOT_OBSERVED),
        fallbacks=reasons(model.LedgerKind.FALLBACK),
        not_graphed=reasons(model.LedgerKind.NOT_GRAPHED),
    )

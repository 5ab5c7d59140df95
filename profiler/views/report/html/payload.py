"""Payload of the HTML page: a profile as plain data.

Note [What the page gets and what it works out]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What does not depend on the reader is a section (``section.py``), decided and worded in Python. Live
sets of any instant are not in the payload, there are millions; what they are made of is, each once
(``payload_live.py``): for every distinct *step* of the timeline what is live when such a call
begins and between it and the next, for every program its events, which the page replays. A site has
its place in each view, so the page adds up and never attributes; the columns of the tables that it
fills are in ``templates``. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import timelines
from memprof.profiler.model import GraphRecord, MemorySnapshot, Profile
from memprof.profiler.views.compare.ranks import compare_ranks, ranks_of
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.section import Note, Section
from memprof.profiler.views.report.sections import (
    about,
    account,
    dataflow,
    ledger,
    live,
    of_device,
    processes,
    tracker,
)
from memprof.profiler.views.report.summary import Summary, on_device, summarize

from .payload_gantt import gantt_payload
from .payload_live import Each, Sites, live_payload

MAX_LEDGER = 5_000  # entries of the ledger, the latest; ``--section ledger`` prints all
MAX_RANKS = 16  # with all their views: of more, those with the highest peaks; all are compared
MAX_POINTS = 2_000  # of a curve, more than it has pixels
_SNAPSHOTS = 12  # of the tracker in the table; its curve has more


def ranks_payload(
    profiles: Sequence[Profile],
    device: str | None = None,
) -> dict[str, Any]:
    """Payload of a report for each process, and of their comparison; see ``report_page``."""
    if len(profiles) == 1:
        return {"ranks": None, "profiles": [report_payload(profiles[0], device)]}
    compared = compare_ranks(profiles, device)
    numbers = ranks_of(profiles)
    highest = sorted(compared.rows, key=lambda r: (-r.peak, r.rank))[:MAX_RANKS]
    shown = sorted(r.rank for r in highest)
    section = processes.of_ranks(compared, format_bytes).plain()
    return {
        "ranks": {"section": section, "shown": shown, "first": shown.index(highest[0].rank)},
        "profiles": [report_payload(profiles[numbers.index(r)], device) for r in shown],
    }


def report_payload(profile: Profile, device: str | None = None) -> dict[str, Any]:
    texts: Each[str] = Each()
    attribution = Attribution(profile)
    found = timelines(profile)
    summary = summarize(profile, device, found, attribution)
    sites = Sites(attribution)
    start = _first_time(profile)
    curves = dict(_curves(profile, start))
    names = [summary.device, *sorted(d for d in summary.device_peaks if d != summary.device)]
    devices = []
    for name in names:
        of = on_device(summary, found[name], attribution)
        sections = {s.id: s.plain() for s in of_device(of, format_bytes)}
        figures = live.figures(of, format_bytes)
        live_sets = live_payload(found[name], sites, start)
        devices.append({"device": name, **live_sets, "figures": figures, "sections": sections})
    return {
        "header": about.header(summary).plain(),
        "sections": [s.plain() for s in _sections(summary, curves) if s],
        "templates": {n: t.plain() for n, t in live.live_templates().items()},
        "curves": curves,
        "gantt": gantt_payload(profile),
        "peaks": summary.device_peaks,
        "views": [v.value for v in View],
        "devices": devices,
        "graphs": {g.id: _graph(g, texts) for g in profile.graphs},
        "texts": list(texts),
        # Last: everything above adds to them.
        "sites": sites.payload(),
        "places": sites.places(),
    }


def _sections(summary: Summary, curves: Container[str]) -> Iterator[Section]:
    """Yields the sections in the order of the page. Those of ``of_device`` hold the place of each
    device's sections."""
    profile, grows = summary.profile, about.of_growth(summary.growth, format_bytes)
    # What a failed allocation asked for comes first, as in the text.
    failed = any(a.failure is not None for a in profile.accounts)
    if grows and not failed:
        yield grows
    accounts = account.of_accounts(profile.accounts, format_bytes, summary.at_peak)
    yield Section("accounts", "Device memory", parts=accounts)
    pools = tuple(account.of_graph_pool(p, format_bytes) for p in profile.graph_pools)
    yield Section("graph-pools", "CUDA graphs", parts=pools)
    if grows and failed:
        yield grows
    if summary.peak is not None or summary.advice:
        yield about.advice(summary.advice, format_bytes)
    yield from live.of_instant(profile)
    yield _operations(profile)
    graphs, not_counted = of_device(summary, format_bytes)
    if profile.graphs:
        yield from (graphs, live.descriptions(profile))
        yield ledger.trees(summary, format_bytes)
    counts = ledger.ledger_counts(summary)
    entries = ledger.of_ledger(profile, format_bytes, MAX_LEDGER)
    yield replace(entries, notes=(*counts.notes, *entries.notes), parts=counts.parts)
    if profile.dataflow is not None:
        yield dataflow.dataflow(summary.dataflow, format_bytes)
    if profile.tracker is not None:
        parts = tracker.of_tracker(profile.tracker, format_bytes, _SNAPSHOTS)
        view = "curve tracker" if "tracker" in curves else ""
        yield Section("tracker", "Tracker", parts=tuple(parts), view=view)
    if profile.graphs:
        yield not_counted
    yield about.words()


def _operations(profile: Profile) -> Section:
    tracked = profile.tracker is not None and profile.tracker.operation_summary
    title = "Operations and calls" if tracked else "Calls"
    note = f"{profile.calls.dropped:,} calls before the first one shown are no longer in the log."
    notes = (Note(note),) if profile.calls.dropped else ()
    return Section("operations", title, notes, view="gantt" * bool(tracked or len(profile.calls)))


def _first_time(profile: Profile) -> int:
    """Origin of the page's clock: the earliest time of data flow, snapshots and calls, in ns."""
    dataflow = profile.dataflow.devices if profile.dataflow else []
    snapshots = profile.tracker.snapshots if profile.tracker else []
    times = [d.time_ns[0] for d in dataflow if d.time_ns] + [s.time_ns for s in snapshots]
    return min([*times, *profile.calls.start_ns], default=0)


def _graph(graph: GraphRecord, texts: Each[str]) -> dict[str, Any]:
    """Label, and the number in ``texts`` of each line of generated code at which a program does
    something."""
    used = {e.line for p in graph.programs for e in p.events}
    lines = {s.line: texts[s.text[:200]] for s in graph.statements if s.line in used}
    return {"id": graph.id, "label": graph.label, "lines": lines}


def _thinned(totals: Sequence[int], points: int = MAX_POINTS) -> set[int]:
    """Indices of a curve's points to keep: all of a short one; of a long one the first, the last,
    and the first highest and first lowest of each of ``points / 2`` equal stretches."""
    n = len(totals)
    if n <= points:
        return set(range(n))
    keep = {0, n - 1}
    stretches = points // 2
    for i in range(stretches):
        stretch = range(i * n // stretches, (i + 1) * n // stretches)
        keep |= {most(stretch, key=totals.__getitem__) for most in (max, min)}
    return keep


def _curves(profile: Profile, start: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields curves with their names: live bytes by category of each device of the data-flow
    profile, and figures of the tracker's snapshots; times in ns since ``start``."""
    for d in profile.dataflow.devices if profile.dataflow else ():
        keep = sorted(_thinned([d.bytes_at(i) for i in range(len(d.time_ns))]))
        lines = {c.value: of for c, of in d.bytes.items()}
        yield (
            f"dataflow {d.device}",
            {
                "label": f"Memory of {d.device} over time by category",
                "peak": None if d.peak is None else d.time_ns[d.peak] - start,
                "stacked": True,
                **_kept(lines, [t - start for t in d.time_ns], keep),
            },
        )
    snapshots = profile.tracker.snapshots if profile.tracker else []
    if tracked := _tracked(snapshots):
        # They share their times: each curve has its part of the points.
        points = MAX_POINTS // len(tracked)
        keep = sorted(set().union(*(_thinned(values, points) for values in tracked.values())))
        yield (
            "tracker",
            {
                "label": "Memory of the process over time",
                "peak": None,
                "stacked": False,
                **_kept(tracked, [s.time_ns - start for s in snapshots], keep),
            },
        )


def _kept(
    lines: Mapping[str, Sequence[int]], times: Sequence[int], keep: Sequence[int]
) -> dict[str, Any]:
    return {
        "time_ns": [times[i] for i in keep],
        "lines": [{"name": n, "values": [of[i] for i in keep]} for n, of in lines.items()],
    }


def _tracked(snapshots: Sequence[MemorySnapshot]) -> dict[str, list[int]]:
    """Bytes at each snapshot, by name of the figure; where a snapshot has none, the one before."""
    found: dict[str, list[int | None]] = {
        "resident": [s.resident_bytes for s in snapshots],
        "live Python tensors": [s.total_bytes for s in snapshots],
    }
    for device in sorted({d for s in snapshots for d in s.devices} - {"cpu"}):
        memory = [s.devices.get(device) for s in snapshots]
        found[f"{device} allocated"] = [m.allocated_bytes if m else None for m in memory]
        found[f"{device} reserved"] = [m.reserved_bytes if m else None for m in memory]
    out = {}
    for name, values in found.items():
        if len(values) > 1 and any(values):
            last = 0
            out[name] = [last := last if value is None else value for value in values]
    return out

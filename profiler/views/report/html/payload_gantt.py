"""Operations, calls and compilations of the page as bars, as columns of numbers.

Times are nanoseconds from the first thing recorded. Bars are placed here, in rows where none
overlaps another, and go to the page row by row, each in order of time: it finds them by binary
search. A plotting library, which tests every shape, took ten times as long for 20,000 bars.

A bar that begins while another of its lane runs stands in a row of its own: the first that is
free. So a thousand requests of asyncio's tasks, eight at a time, have the rows of eight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.model import LaneKind, LedgerKind, Profile, TrackerRecord
from memprof.profiler.views.report.format import format_bytes

from .payload_live import distinct

CALLS = (
    *(f"{kind}{way}" for kind in ("forward", "backward", "inference") for way in ("", " replay")),
    "warm-up",
    "recording",
)
KINDS = ("operation", "failed operation", *CALLS, "compilation")
"""Kinds of bars, in the order of the legend."""

NOT_MEASURED = -1


@dataclass(slots=True)
class Bar:
    """An operation, a call or a compilation, drawn as a bar."""

    start_ns: int
    end_ns: int
    name: str  # what to write on it
    kind: str  # one of ``KINDS``
    number: int  # of the operation, or of the call
    row: int = 0  # where it stands in its lane, from 0 at the top


def gantt_payload(profile: Profile) -> dict[str, Any] | None:
    """Lanes and bars of the page's Gantt chart as JSON values, times in ns; None if there are no
    bars."""
    lanes = _lanes(profile)
    bars = [b for _, lane in lanes for b in lane]
    if not bars:
        return None
    tracker, log = profile.tracker, profile.calls
    base = min(b.start_ns for b in bars)
    if tracker is not None and tracker.metadata.start_ns > 0:
        base = min(base, tracker.metadata.start_ns)

    return {
        "end": max(b.end_ns for b in bars) - base,
        "calls": [min(log.start_ns) - base, max(log.end_ns) - base] if len(log) else None,
        "lanes": [
            {"name": name, "rows": [*Counter(b.row for b in lane).values()]} for name, lane in lanes
        ],
        "bars": {
            "start": [b.start_ns - base for b in bars],
            "duration": [b.end_ns - b.start_ns for b in bars],
            "name": distinct(b.name for b in bars),
            "kind": distinct(b.kind for b in bars),
            "call": [b.number if b.kind in CALLS else None for b in bars],
            "facts": [_facts(tracker, b) if tracker else [] for b in bars],
        },
        "kinds": Counter(b.kind for b in bars),
        "modes": [mode.value for mode in call_modes(profile)],
        "pauses": [[p.start_ns - base, p.end_ns - base] for p in tracker.metadata.pauses]
        if tracker
        else [],
    }


def _lanes(profile: Profile) -> list[tuple[str, list[Bar]]]:
    """Names and bars of lanes, row by row: threads that run compiled code first, each group in
    order of time; then compilations, then tasks."""
    lanes = profile.tracker.metadata.lanes if profile.tracker else []
    found: defaultdict[tuple[str, int], list[Bar]] = defaultdict(list)
    names = {("compilation", 0): "compilation"}
    keys: list[tuple[str, int]] = []
    for i, lane in enumerate(lanes):
        # A thread by its number in the log of calls; by that of its lane, where it made none.
        key = ("lane", i) if lane.call_thread is None else ("thread", lane.call_thread)
        name = lane.name
        if lane.kind is LaneKind.TASK:
            key = ("tasks", lane.thread)
            name = f"tasks of {lanes[lane.thread].name if 0 <= lane.thread < len(lanes) else '?'}"
        keys.append(key)
        names[key] = name
    for i, bar in _operations(profile):
        found[keys[i]].append(bar)
    for thread, bar in _calls(profile):
        found["thread", thread].append(bar)
    for bar in _compilations(profile):
        found["compilation", 0].append(bar)
    called = {("thread", t) for t in profile.calls.thread}

    def order(key: tuple[str, int]) -> tuple[int, int]:
        if key[0] in ("thread", "lane"):
            return key not in called, found[key][0].start_ns
        return 2 if key[0] == "compilation" else 3, key[1]

    out = []
    for key in sorted(found, key=order):
        bars = found[key]
        place(bars)
        bars.sort(key=lambda b: (b.row, b.start_ns))
        out.append((names.get(key, f"thread {key[1]}"), bars))
    return out


def _calls(profile: Profile) -> Iterator[tuple[int, Bar]]:
    calls = profile.calls
    graphs = {g.id: g for g in profile.graphs}
    for k, mode in enumerate(call_modes(profile)):
        graph = graphs[calls.graph[k]]
        kind = str(graph.kind.value)
        if mode in (CallMode.WARM_UP, CallMode.RECORD):
            kind = mode.value
        elif mode in (CallMode.REPLAY, CallMode.REPLAY_OR_RUN):
            kind += " replay"
        yield calls.thread[k], Bar(calls.start_ns[k], calls.end_ns[k], graph.label, kind, k)


def _operations(profile: Profile) -> Iterator[tuple[int, Bar]]:
    tracker = profile.tracker
    if tracker is None:
        return
    rows = tracker.operation_allocations
    for i, (start, end) in enumerate(zip(rows.start_ns, rows.end_ns, strict=True)):
        end = end if end >= 0 else max(tracker.metadata.end_ns, start)
        kind = "failed operation" if rows.failed[i] else "operation"
        name = tracker.operation_summary[rows.summary[i]].name
        yield rows.lane[i], Bar(start, end, name, kind, i)


def _compilations(profile: Profile) -> Iterator[Bar]:
    """Inductor's part of a compilation, which had ended when its entry was written."""
    if not profile.perf_origin_ns:
        return
    graphs = {g.id: g for g in profile.graphs}
    for e in profile.ledger:
        graph = graphs.get(e.graph) if e.graph is not None else None
        if e.kind is LedgerKind.COMPILED and graph is not None and graph.compile_ns:
            end = e.time_ns - profile.perf_origin_ns
            yield Bar(end - graph.compile_ns, end, graph.label, "compilation", graph.id)


def _facts(tracker: TrackerRecord, bar: Bar) -> list[tuple[str, str]]:
    """Labels and texts that the page shows of an operation beside its name and times."""
    if not bar.kind.endswith("operation"):
        return []
    rows, i = tracker.operation_allocations, bar.number
    measured = [("Tensors", rows.tensor_bytes_before[i], rows.tensor_bytes_after[i])]
    for device, m in rows.memory.items():
        name = "Resident" if device == "cpu" else f"Allocated on {device}"
        measured.append((name, m.before[i], m.after[i]))
    facts = [
        (name, f"{format_bytes(before)} → {format_bytes(after)}")
        for name, before, after in measured
        if NOT_MEASURED not in (before, after)
    ]
    for m in rows.memory.values():
        if m.peak[i] != NOT_MEASURED:
            label = "Peak inside" if m.exact[i] else "Peak inside, at least"
            facts.append((label, format_bytes(m.peak[i])))
    return [*facts, ("Path", tracker.path(rows.summary[i]))]


def place(bars: list[Bar]) -> None:
    """Sort bars by start and give each the first row that is free. What is inside of another one
    stands below it, and one that only overlaps hides nothing."""
    bars.sort(key=lambda b: (b.start_ns, -b.end_ns))
    free: list[int] = []  # rows: a heap
    busy: list[tuple[int, int]] = []  # until when, and which row: a heap
    for bar in bars:
        while busy and busy[0][0] <= bar.start_ns:
            heappush(free, heappop(busy)[1])
        bar.row = heappop(free) if free else len(busy)
        heappush(busy, (bar.end_ns, bar.row))

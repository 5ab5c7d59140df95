"""Operations, calls and compilations of the page as bars, as columns of numbers.

Times are nanoseconds from the first thing recorded. Bars are placed here, in rows of which no two
overlap; the page only draws. Live bytes of calls are those of the page's devices. As rows are
sorted, both drawing and finding are binary searches there; a plotting library, which tests every
shape, took ten times as long for 20,000 bars.

In a lane of a thread a bar that begins while another runs stands below it: nested operations, and
the calls inside them, hang from what called them. In a lane of asyncio tasks, which take turns on
one thread, each task's outermost operation with all that is in it takes the first rows that are
free: a server with a thousand requests, eight at a time, has eight rows and not a thousand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from ...model import LaneKind, LedgerKind, Profile, TrackerRecord
from ...trees import CallMode, call_modes

KINDS = (
    "operation",
    "failed operation",
    *(f"{kind}{way}" for kind in ("forward", "backward", "inference") for way in ("", " replay")),
    "warm-up",
    "recording",
    "compilation",
)
"""What bars can be, in the order of the legend."""


_OPERATION_COLORS = 7


@dataclass(slots=True)
class Bar:
    """One thing that took time."""

    # start_ns, end_ns: when
    start_ns: int
    end_ns: int
    name: str  # what to write on it
    kind: str  # decides its colour
    detail: int  # position among the details of its kind
    task: int = 0  # in a lane of tasks, which one; 0 elsewhere
    row: int = 0  # where it stands in its lane, from 0 at the top


def gantt_payload(profile: Profile, calls: range | None = None) -> dict[str, Any] | None:
    """What the page's bars are, as JSON values; None where there is none. ``calls`` are shown
    first, by default everything."""
    lanes = _lanes(profile)
    bars = [b for _, _, lane in lanes for b in lane]
    if not bars:
        return None
    base, log = min(b.start_ns for b in bars), profile.calls
    operations: list[Any] = []
    pauses: list[Any] = []
    if (tracker := profile.tracker) is not None:
        operations = [_facts(tracker, i) for i in range(len(tracker.operation_allocations))]
        pauses = tracker.metadata.pauses
        if tracker.metadata.start_ns > 0:
            base = min(base, tracker.metadata.start_ns)

    def window(calls: range | None) -> list[int] | None:
        if not calls:
            return None
        chosen = slice(calls.start, calls.stop)
        return [min(log.start_ns[chosen]) - base, max(log.end_ns[chosen]) - base]

    colors, legend = _colors(bars)
    number = {variable: i for i, variable in enumerate(dict.fromkeys(map(colors, bars)))}
    return {
        "end": max(b.end_ns for b in bars) - base,
        "kinds": KINDS,
        "calls": window(calls),
        "all_calls": window(range(len(log))),
        "colors": list(number),
        "legend": legend,
        "lanes": [
            {
                "name": name,
                "rows": rows,
                "row": [b.row for b in lane],
                "start": [b.start_ns - base for b in lane],
                "duration": [b.end_ns - b.start_ns for b in lane],
                "label": [b.name for b in lane],
                "kind": [KINDS.index(b.kind) for b in lane],
                "color": [number[colors(b)] for b in lane],
                "detail": [b.detail for b in lane],
            }
            for name, rows, lane in lanes
        ],
        "modes": [mode.value for mode in call_modes(profile)],
        "operations": operations,
        "pauses": [[p.start_ns - base, p.end_ns - base] for p in pauses],
    }


def _colors(bars: list[Bar]) -> tuple[Callable[[Bar], str], list[tuple[str, list[dict[str, Any]]]]]:
    """The CSS variable of a bar's colour, and the legend: calls by their kind, operations by their
    name, as far as there are colours; those with most time have one of their own."""
    time: Counter[str] = Counter()
    for b in bars:
        if b.kind == "operation":
            time[b.name] += b.end_ns - b.start_ns
    own = {name: f"--op-{i}" for i, (name, _) in enumerate(time.most_common(_OPERATION_COLORS))}
    plain = {kind: f"--bar-{kind.replace(' ', '-')}" for kind in KINDS}

    def color(b: Bar) -> str:
        return own.get(b.name, plain[b.kind]) if b.kind == "operation" else plain[b.kind]

    counts = Counter(map(color, bars))
    others = "other operations" if len(own) < len(time) else "operation"
    operations = [*own.items(), (others, plain["operation"]), ("failed", plain["failed operation"])]
    calls = [(kind, plain[kind]) for kind in KINDS[2:]]
    legend = []
    for title, of in (("Operations", operations), ("Compiled calls", calls)):
        shown = [{"label": k, "variable": v, "count": counts[v]} for k, v in of if counts[v]]
        if shown:
            legend.append((title, shown))
    return color, legend


def _lanes(profile: Profile) -> list[tuple[str, int, list[Bar]]]:
    """Name, rows and bars of each lane: threads that run compiled code first, each group in order
    of time; then compilations, then tasks."""
    threads: defaultdict[tuple[str, int], list[Bar]] = defaultdict(list)
    tasks: defaultdict[int, list[Bar]] = defaultdict(list)
    lanes = profile.tracker.metadata.lanes if profile.tracker else []
    keys = [
        ("lane", i) if lane.call_thread is None else ("thread", lane.call_thread)
        for i, lane in enumerate(lanes)
    ]
    names = {
        key: lane.name
        for key, lane in zip(keys, lanes, strict=True)
        if lane.kind is LaneKind.THREAD
    }
    for i, bar in _operations(profile):
        if lanes[i].kind is LaneKind.TASK:
            bar.task = i
            tasks[lanes[i].thread].append(bar)
        else:
            threads[keys[i]].append(bar)
    for thread, bar in _calls(profile):
        threads["thread", thread].append(bar)
    called = {("thread", t) for t in profile.calls.thread}
    out = []
    for key in sorted(threads, key=lambda key: (key not in called, threads[key][0].start_ns)):
        bars = threads[key]
        out.append((names.get(key, f"thread {key[1]}"), nested_rows(bars), bars))
    if compilations := list(_compilations(profile)):
        out.append(("compilation", nested_rows(compilations), compilations))
    for thread, bars in sorted(tasks.items()):
        name = lanes[thread].name if 0 <= thread < len(lanes) else "?"
        out.append((f"tasks of {name}", packed_rows(bars), bars))
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


def _facts(tracker: TrackerRecord, i: int) -> list[tuple[str | int, ...]]:
    """What the page says of an operation beside its name and its times: a label, and a text, or
    bytes, or bytes before and after."""
    rows = tracker.operation_allocations
    said: list[tuple[str | int, ...]] = [("In", tracker.metadata.lanes[rows.lane[i]].name)]
    if rows.end_ns[i] < 0:
        said.insert(0, ("Ends", "after the record"))
    said.append(("Tensors", rows.tensor_bytes_before[i], rows.tensor_bytes_after[i]))
    for device, m in rows.memory.items():
        what = "Resident" if device == "cpu" else f"Allocated on {device}"
        said.append((what, m.before[i], m.after[i]))
        said.append((f"Peak inside{'' if m.exact[i] else ', at least'}", m.peak[i]))
    if tracker.operation_summary[rows.summary[i]].parent >= 0:
        said.append(("Path", tracker.path(rows.summary[i])))
    # What nobody measured is -1.
    return [fact for fact in said if -1 not in fact]


def nested_rows(bars: list[Bar]) -> int:
    """Sort bars by start and place each below those that still run; the number of rows."""
    bars.sort(key=lambda b: (b.start_ns, -b.end_ns))
    # Rows in use, from the top: end and how many rows in a row have it. Ends do not grow downwards.
    ends: list[tuple[int, int]] = []
    used = 0
    for bar in bars:
        while ends and ends[-1][0] <= bar.start_ns:
            used -= ends.pop()[1]
        # Bars of a thread nest. Those that do not (calls that the log has on one thread number
        # after it was given to another) go further down and hide nothing: what is above them stays
        # in use for as long as they are.
        bar.row = used
        count = 1
        while ends and ends[-1][0] <= bar.end_ns:
            count += ends.pop()[1]
        ends.append((bar.end_ns, count))
        used += 1
    return 1 + max((b.row for b in bars), default=-1)


def packed_rows(bars: list[Bar]) -> int:
    """Place the bars of several tasks, each outermost one with its inside as one block; the
    number of rows."""
    blocks: list[list[Bar]] = []
    by_task: defaultdict[int, list[Bar]] = defaultdict(list)
    for bar in bars:
        by_task[bar.task].append(bar)
    for own in by_task.values():
        nested_rows(own)
        for bar in own:
            if not bar.row:  # nothing else of its task is around it
                blocks.append([])
            blocks[-1].append(bar)
    blocks.sort(key=lambda block: block[0].start_ns)
    free: list[int] = []  # rows, in order
    busy: list[tuple[int, int]] = []  # until when, and which row: a heap
    rows = 0
    for block in blocks:
        while busy and busy[0][0] <= block[0].start_ns:
            insort(free, heappop(busy)[1])
        height = 1 + max(b.row for b in block)
        base = _first_free(free, rows, height)
        at = bisect_left(free, base)
        del free[at : at + min(height, rows - base)]
        end = max(b.end_ns for b in block)
        for row in range(base, base + height):
            heappush(busy, (end, row))
        rows = max(rows, base + height)
        for bar in block:
            bar.row += base
    bars.sort(key=lambda b: (b.start_ns, b.row))
    return rows


def _first_free(free: Sequence[int], rows: int, height: int) -> int:
    """The first of ``height`` free rows side by side; below the last row all are free."""
    run, before = 0, -1
    for row in free:
        run = run + 1 if row == before + 1 else 1
        if run == height:
            return row + 1 - height
        before = row
    return rows - run if before == rows - 1 else rows

"""What the Gantt page knows: operations, calls and memory curves as columns. No torch, no HTML.

Times are nanoseconds from the first thing recorded, bytes are bytes, text is interned in
``strings``. Bars are placed here (``gantt_lanes.py``); the page only draws.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ...call_modes import CallMode, call_modes
from ...devices import devices_of
from ...export.walk import call_range
from ...model import GraphRecord, LaneKind, LedgerKind, Profile, TensorInfo
from ...out_of_memory import out_of_memory
from ...timeline import Timeline
from .gantt_lanes import Bar, nested_rows, packed_rows

__all__ = ["KINDS", "gantt_payload"]

KINDS = (
    "operation",
    "failed operation",
    *(f"{kind}{way}" for kind in ("forward", "backward", "inference") for way in ("", " replay")),
    "warm-up",
    "recording",
    "compilation",
)
"""What bars can be, in the order of the legend."""

_MAX_TOTALS = 1_000_000
"""Instants whose bytes are in the page; beyond, a call has its entry, peak and exit."""

_MAX_LARGEST = 5
"""Largest tensors of a snapshot in the page."""


def gantt_payload(
    profile: Profile, source: str = "", first: int | None = None, last: int | None = None
) -> dict[str, Any]:
    """Everything the Gantt page shows of ``profile``, as JSON values.

    Args:
        profile: a valid one.
        source: name of the file that it comes from.
        first, last: calls of the log, both included; None is its end. Operations and
            snapshots of the tracker are all shown.

    Raises:
        IndexError: the log has no such calls.
    """
    return _Payload(profile, call_range(profile, first, last)).build(source)


class _Payload:
    def __init__(self, profile: Profile, calls: range) -> None:
        self.profile = profile
        self.calls = calls
        self.strings: dict[str, int] = {}
        self.graphs = {g.id: g for g in profile.graphs}
        self.modes = call_modes(profile)
        times = list(self._times())
        self.base = min(times, default=0)
        self.end = max(times, default=0) - self.base

    def build(self, source: str) -> dict[str, Any]:
        lanes = self._lanes()
        tracker = self.profile.tracker
        wall = self.base + self.profile.perf_origin_ns if self.profile.perf_origin_ns else None
        return {
            "source": source,
            "wall_ms": None if wall is None else wall // 1_000_000,
            "process": self._process(),
            "end": self.end,
            "kinds": KINDS,
            "lanes": [
                {
                    "name": name,
                    "rows": rows,
                    "row": [b.row for b in bars],
                    "start": [b.start_ns - self.base for b in bars],
                    "duration": [b.end_ns - b.start_ns for b in bars],
                    "name_of": [self._text(b.name) for b in bars],
                    "kind": [KINDS.index(b.kind) for b in bars],
                    "detail": [b.detail for b in bars],
                }
                for name, rows, bars in lanes
            ],
            "concurrency": _concurrency([b for _, _, bars in lanes for b in bars], self.base),
            "calls": self._call_details(),
            "operations": self._operation_details(),
            "devices": [
                self._device(name)
                for name in sorted(devices_of(self.profile), key=lambda d: (d == "cpu", d))
            ],
            "curves": list(self._curves()),
            "largest": self._largest(),
            "marks": list(self._marks()),
            "summary": self._summary(),
            "notes": self._notes(),
            "pauses": [
                [p.start_ns - self.base, p.end_ns - self.base]
                for p in (tracker.metadata.pauses if tracker else ())
            ],
            "strings": list(self.strings),
        }

    # The axis

    def _times(self) -> Iterator[int]:
        columns = self.profile.calls
        if self.calls:
            yield min(columns.start_ns[self.calls.start : self.calls.stop])
            yield max(columns.end_ns[self.calls.start : self.calls.stop])
        tracker = self.profile.tracker
        if tracker is not None:
            rows = tracker.operation_allocations
            yield from (t for t in (tracker.metadata.start_ns, tracker.metadata.end_ns) if t > 0)
            yield from rows.start_ns
            yield from (t for t in rows.end_ns if t >= 0)
            yield from (s.time_ns for s in tracker.snapshots)
        if self.profile.dataflow is not None:
            for device in self.profile.dataflow.devices:
                yield from (*device.time_ns[:1], *device.time_ns[-1:])
        yield from (t for bar in self._compilations() for t in (bar.start_ns, bar.end_ns))

    def _process(self) -> dict[str, Any] | None:
        p = self.profile.process
        if p is None:
            return None
        return {"rank": p.rank, "world_size": p.world_size, "host": p.host, "pid": p.pid}

    # Bars

    def _lanes(self) -> list[tuple[str, int, list[Bar]]]:
        threads: dict[tuple[str, int], list[Bar]] = {}
        names: dict[tuple[str, int], str] = {}
        tasks: dict[int, list[Bar]] = {}
        tracker = self.profile.tracker
        lanes = tracker.metadata.lanes if tracker else []
        keys: list[tuple[str, int]] = []
        for i, lane in enumerate(lanes):
            key = ("lane", i) if lane.call_thread is None else ("thread", lane.call_thread)
            keys.append(key)
            if lane.kind is LaneKind.THREAD:
                names[key] = lane.name
        for i, bar in self._operations():
            if lanes[i].kind is LaneKind.TASK:
                bar.task = i
                tasks.setdefault(lanes[i].thread, []).append(bar)
            else:
                threads.setdefault(keys[i], []).append(bar)
        for thread, bar in self._calls():
            threads.setdefault(("thread", thread), []).append(bar)
        out = []
        called = {("thread", t) for t in self.profile.calls.thread}
        # Threads that run compiled code first, each group in order of time.
        for key, bars in sorted(
            threads.items(), key=lambda item: (item[0] not in called, item[1][0].start_ns)
        ):
            out.append((names.get(key, f"thread {key[1]}"), nested_rows(bars), bars))
        compilations = list(self._compilations())
        if compilations:
            out.append(("compilation", nested_rows(compilations), compilations))
        for thread, bars in sorted(tasks.items()):
            name = lanes[thread].name if 0 <= thread < len(lanes) else "?"
            rows = packed_rows(bars)
            out.append((f"tasks of {name}", rows, bars))
            if 0 <= thread < len(lanes):
                _inside_tasks(threads.get(keys[thread], []), bars)
        return out

    def _calls(self) -> Iterator[tuple[int, Bar]]:
        calls = self.profile.calls
        for detail, k in enumerate(self.calls):
            graph = self.graphs[calls.graph[k]]
            bar = Bar(
                calls.start_ns[k],
                calls.end_ns[k],
                graph.label,
                _kind(graph, self.modes[k]),
                detail,
            )
            yield calls.thread[k], bar

    def _operations(self) -> Iterator[tuple[int, Bar]]:
        tracker = self.profile.tracker
        if tracker is None:
            return
        rows = tracker.operation_allocations
        for i in range(len(rows)):
            end = rows.end_ns[i]
            if end < 0:
                end = max(tracker.metadata.end_ns, rows.start_ns[i])
            kind = "failed operation" if rows.failed[i] else "operation"
            name = tracker.operation_summary[rows.summary[i]].name
            yield rows.lane[i], Bar(rows.start_ns[i], end, name, kind, i)

    def _compilations(self) -> Iterator[Bar]:
        """Inductor's part of a compilation, which had ended when its entry was written."""
        if not self.profile.perf_origin_ns:
            return
        for e in self.profile.ledger:
            graph = self.graphs.get(e.graph) if e.graph is not None else None
            if e.kind is LedgerKind.COMPILED and graph is not None and graph.compile_ns:
                end = e.time_ns - self.profile.perf_origin_ns
                yield Bar(end - graph.compile_ns, end, graph.label, "compilation", graph.id)

    # Details

    def _call_details(self) -> dict[str, Any]:
        calls = self.profile.calls
        return {
            "first": self.calls.start,
            "logged": len(calls),
            "mode": [self._text(self.modes[k].value) for k in self.calls],
            "start": [calls.start_ns[k] - self.base for k in self.calls],
            "end": [calls.end_ns[k] - self.base for k in self.calls],
        }

    def _operation_details(self) -> dict[str, Any]:
        tracker = self.profile.tracker
        if tracker is None:
            return {"path": [], "lane": [], "running": [], "memory": {}}
        rows = tracker.operation_allocations
        paths = [self._text(tracker.path(i)) for i in range(len(tracker.operation_summary))]
        lanes = [self._text(lane.name) for lane in tracker.metadata.lanes]
        return {
            "path": [paths[s] for s in rows.summary],
            "lane": [lanes[i] for i in rows.lane],
            "running": [i for i, end in enumerate(rows.end_ns) if end < 0],
            "tensor_bytes": [rows.tensor_bytes_before, rows.tensor_bytes_after],
            "tensors": [rows.tensors_before, rows.tensors_after],
            "memory": {
                device: {
                    "before": m.before,
                    "after": m.after,
                    "peak": m.peak,
                    "exact": [int(x) for x in m.exact],
                }
                for device, m in rows.memory.items()
            },
        }

    def _device(self, device: str) -> dict[str, Any]:
        """Live bytes of calls. Calls of one kind (``Timeline.kind``) share one row."""
        timeline = Timeline(self.profile, device)
        over_time = timeline.bytes_over_time()
        numbers: dict[int, int] = {}
        kinds: list[dict[str, Any]] = []
        room = _MAX_TOTALS
        kind_of = []
        for k in self.calls:
            kind = timeline.kind(k)
            if kind not in numbers:
                numbers[kind] = len(kinds)
                totals = [over_time.entry[k]]
                for before, after in timeline.changes(k):
                    n = (after.nbytes if after else 0) - (before.nbytes if before else 0)
                    totals.append(totals[-1] + n)
                if len(totals) > room:
                    totals = [over_time.entry[k], over_time.peak[k], over_time.exit[k]]
                room -= len(totals)
                kinds.append({"totals": totals, "between": over_time.between[k]})
            kind_of.append(numbers[kind])
        return {"device": device, "kind": kind_of, "kinds": kinds}

    def _curves(self) -> Iterator[dict[str, Any]]:
        tracker = self.profile.tracker
        series: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for s in tracker.snapshots if tracker else ():
            time = s.time_ns - self.base
            if s.resident_bytes is not None:
                series.setdefault(("resident", "cpu"), []).append((time, s.resident_bytes))
            for device, m in s.devices.items():
                figures = {"tensors": m.tensor_bytes, "allocated": m.allocated_bytes}
                if device != "cpu":
                    figures["reserved"] = m.reserved_bytes
                for name, value in figures.items():
                    if value is not None:
                        series.setdefault((name, device), []).append((time, value))
        for (name, device), points in series.items():
            yield {
                "name": name,
                "device": device,
                "step": False,
                "time": [t for t, _ in points],
                "value": [v for _, v in points],
            }
        for d in self.profile.dataflow.devices if self.profile.dataflow else ():
            columns = list(d.bytes.values())
            yield {
                "name": "data flow",
                "device": d.device,
                "step": True,
                "time": [t - self.base for t in d.time_ns],
                "value": [sum(c[i] for c in columns) for i in range(len(d.time_ns))],
            }

    def _largest(self) -> dict[str, Any]:
        """The largest tensors of each snapshot that has some: what they are, and bytes."""
        tracker = self.profile.tracker
        taken = [s for s in (tracker.snapshots if tracker else ()) if s.largest]
        return {
            "time": [s.time_ns - self.base for s in taken],
            "tensors": [
                [[self._text(_tensor(t)), t.nbytes] for t in s.largest[:_MAX_LARGEST]]
                for s in taken
            ],
        }

    def _marks(self) -> Iterator[dict[str, Any]]:
        for f in self.profile.dataflow.failures if self.profile.dataflow else ():
            if 0 <= f.time_ns - self.base <= self.end:
                yield {
                    "time": f.time_ns - self.base,
                    "name": "out of memory",
                    "of": f.device or "",
                    "text": f.op or "",
                    "count": 1,
                }
        for e in self.profile.ledger if self.profile.perf_origin_ns else ():
            time = e.time_ns - self.profile.perf_origin_ns - self.base
            if e.kind is LedgerKind.COMPILED or not 0 <= time <= self.end:
                continue
            graph = self.graphs.get(e.graph) if e.graph is not None else None
            yield {
                "time": time,
                "name": e.kind.value.replace("_", " "),
                "of": graph.label if graph else "",
                "text": e.reason,
                "count": e.count,
            }
        for s in self.profile.tracker.snapshots if self.profile.tracker else ():
            if s.name:
                yield {
                    "time": s.time_ns - self.base,
                    "name": s.name,
                    "of": s.kind.value,
                    "text": f"{s.total_tensors:,} tensors",
                    "count": 1,
                }

    def _summary(self) -> list[dict[str, Any]]:
        tracker = self.profile.tracker
        if tracker is None:
            return []
        return [
            {
                "path": tracker.path(i),
                "count": s.count,
                "failed": s.failed,
                "total_ns": s.total_ns,
                "mean_ns": s.mean_ns,
                "max_ns": s.max_ns,
                "tensor_bytes": s.tensor_bytes_delta if s.tensors_measured else None,
                "tensors_known": s.tensors_measured,
                "devices": {
                    d: {"delta": m.total_delta, "peak": m.max_peak}
                    for d, m in s.devices.items()
                    if m.measured
                },
            }
            for i, s in enumerate(tracker.operation_summary)
        ]

    def _notes(self) -> list[str]:
        notes = [f"Left out of the file: {text}" for text in self.profile.left_out]
        for e in out_of_memory(self.profile):
            times = f"{e.count:,} times" if e.count > 1 else "once"
            notes.append(f"Out of memory {times}: {e.what} ({e.source}){e.text and ': '}{e.text}")
        tracker = self.profile.tracker
        if tracker is not None:
            m = tracker.metadata
            if m.operations_dropped:
                notes.append(
                    f"{m.operations_dropped:,} of {m.operations_seen:,} operations are no longer "
                    "recorded one by one: the table counts them, the lanes do not show them."
                )
            if m.snapshots_merged:
                notes.append(
                    f"{m.snapshots_merged:,} of {m.snapshots_taken:,} snapshots have been merged "
                    "into others, the older ones first."
                )
            notes += m.problems
        dropped = self.profile.calls.dropped
        if dropped:
            notes.append(f"{dropped:,} calls before the first one shown are no longer in the log.")
        if len(self.calls) < len(self.profile.calls):
            notes.append(
                f"Calls {self.calls.start + 1:,} to {self.calls.stop:,} of "
                f"{len(self.profile.calls):,} are shown."
            )
        return notes

    def _text(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))


def _tensor(t: TensorInfo) -> str:
    sizes = str(list(t.shape))
    made = t.name or t.node or t.operation
    return f"{t.dtype.removeprefix('torch.')} {sizes}{f', {made}' if made else ''}"


def _inside_tasks(bars: list[Bar], tasks: list[Bar]) -> None:
    """Mark what a thread ran on behalf of its tasks: it is inside an operation of one."""
    starts = [t.start_ns for t in tasks]
    ends = list(accumulate((t.end_ns for t in tasks), max))
    for bar in bars:
        before = bisect_right(starts, bar.start_ns)
        if before and ends[before - 1] >= bar.end_ns:
            bar.outermost = False


def _kind(graph: GraphRecord, mode: CallMode) -> str:
    if mode in (CallMode.WARM_UP, CallMode.RECORD):
        return str(mode.value)
    replays = mode in (CallMode.REPLAY, CallMode.REPLAY_OR_RUN)
    return f"{graph.kind.value} replay" if replays else str(graph.kind.value)


def _concurrency(bars: list[Bar], base: int) -> dict[str, list[int]]:
    """How many outermost operations and calls are under way, from each time to the next."""
    changes: dict[int, int] = {}
    for b in bars:
        if b.outermost and b.kind != "compilation" and b.end_ns > b.start_ns:
            changes[b.start_ns] = changes.get(b.start_ns, 0) + 1
            changes[b.end_ns] = changes.get(b.end_ns, 0) - 1
    times, counts, now = [], [], 0
    for time in sorted(changes):
        if changes[time]:
            now += changes[time]
            times.append(time - base)
            counts.append(now)
    return {"time": times, "count": counts}

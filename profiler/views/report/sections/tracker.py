"""Sections on the run-time tracker's record of a process."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from memprof.profiler import model
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.format import format_ns
from memprof.profiler.views.report.section import NOTHING, Note, Section, Show, Table, Tone

_BRIEF = 5
"""Operations of a short text."""
_STATES = {
    model.RunState.RUNNING: "it has not ended: the process runs, or was killed",
    model.RunState.STOPPED: "stopped",
    model.RunState.EXIT: "ended",
    model.RunState.EXCEPTION: "ended by an exception",
    model.RunState.SIGNAL: "ended by a signal",
}


def of_tracker(record: model.TrackerRecord, show: Show, snapshots: int) -> Iterator[Section]:
    """Yields sections on a tracker's record, with at most ``snapshots`` of its snapshots, but
    always the first, highest and last."""
    yield replace(_about(record), spare=2, name="the tracker")
    yield replace(_memory(record, show, snapshots), spare=3)
    yield replace(_largest(record, show), spare=4)
    yield replace(_operations(record, show), spare=4)
    yield replace(_operators(record, show), detail=True, name="PyTorch operators")


def on_page(parts: tuple[Section, ...]) -> Section:
    """A tracker's sections as one, with the curve of its snapshots."""
    return Section("tracker", "Tracker", parts=parts, view="curve tracker")


def _about(record: model.TrackerRecord) -> Section:
    m = record.metadata
    began = datetime.fromtimestamp((m.perf_origin_ns + m.start_ns) / 1e9, tz=timezone.utc)
    command = " ".join(os.path.basename(a) if i == 0 else a for i, a in enumerate(m.command))
    span = format_ns(max(m.end_ns - m.start_ns, 0))
    state = _STATES[m.state] + (f" ({m.reason})" if m.reason else "")
    gone = m.snapshots_taken - len(record.snapshots)
    thinned = f", {gone:,} of them no longer recorded" * (gone > 0)
    seen = f"{m.operations_seen:,} operations"
    if m.operations_dropped:
        seen += f" ({m.operations_dropped:,} are no longer recorded one by one)"
    about = [
        f"Memory tracker · process {m.pid} on {m.host} · {command}",
        f"memprof {m.memprof} · torch {m.torch} · Python {m.python}",
        f"{span} from {began:%Y-%m-%d %H:%M:%S} UTC, {state}",
        f"{m.snapshots_taken:,} snapshots{thinned}, one every {format_ns(m.interval_ns)}; {seen}",
    ]
    notes = [Note(text, detail=i in (1, 3)) for i, text in enumerate(about)]
    for pause in m.pauses:
        after = format_ns(pause.start_ns - m.start_ns)
        text = f"disabled for {format_ns(pause.end_ns - pause.start_ns)}, {after} in"
        notes.append(Note(text, detail=True))
    notes += [Note(f"problem: {problem}", Tone.WARN) for problem in m.problems]
    return Section("", "", tuple(notes))


def _memory(record: model.TrackerRecord, show: Show, limit: int) -> Section:
    shown = _choose(record.snapshots, limit)
    if not shown:
        return Section("", "Memory over time", (Note("No snapshot was taken."),))
    used = (d for s in shown for d, m in s.devices.items() if m.allocated_bytes)
    devices = sorted(dict.fromkeys(used), key=lambda d: d != "cpu")
    columns = (
        col.Ns("after"),
        col.Text("snapshot"),
        col.Count("live tensors"),
        *col.alike(col.Bytes, "bytes", "resident"),
        *col.alike(col.Bytes, *("CPU allocated" if d == "cpu" else d for d in devices)),
        col.Text("in operation"),
    )
    peak = max(record.snapshots, key=_height)
    rows: list[col.Row] = []
    for s in shown:
        what = f"{s.kind.value} {s.name}".strip() + (" *" if s is peak else "")
        what += "" if s.complete else " (old)"
        found = (s.devices.get(d) for d in devices)
        allocated = (m.allocated_bytes if m else None for m in found)
        figures = (s.total_tensors, s.total_bytes, s.resident_bytes, *allocated)
        after = s.time_ns - record.metadata.start_ns
        rows.append((after, what, *figures, ", ".join(s.operations) or "-"))
    hidden = len(record.snapshots) - len(shown)
    text = f"{len(shown):,} of {len(record.snapshots):,} snapshots; * is the highest."
    notes = [Note(text)] if hidden else []
    return Section("", "Memory over time", tuple(notes), (Table(columns, rows, least=len(rows)),))


def _height(s: model.MemorySnapshot) -> int:
    """Bytes in use: of accelerators if there are any, else resident."""
    devices = [m.highest_bytes or 0 for d, m in s.devices.items() if d != "cpu"]
    if any(devices):
        return sum(devices)
    cpu = s.devices.get("cpu")
    return (cpu.highest_bytes if cpu else s.resident_bytes) or s.total_bytes


def _choose(snapshots: list[model.MemorySnapshot], limit: int) -> list[model.MemorySnapshot]:
    """At most ``limit`` snapshots, but always the first, highest and last: then checkpoints and
    failures, then others evenly spread."""
    if len(snapshots) <= limit:
        return snapshots
    peak = max(range(len(snapshots)), key=lambda i: _height(snapshots[i]))
    chosen = {0, peak, len(snapshots) - 1}
    marked = (model.SnapshotKind.CHECKPOINT, model.SnapshotKind.OUT_OF_MEMORY)
    named = [i for i, s in enumerate(snapshots) if s.kind in marked]
    step = (len(snapshots) - 1) / max(limit - 1, 1)
    for i in (*named, *(round(i * step) for i in range(limit))):
        if len(chosen) < limit:
            chosen.add(i)
    return [snapshots[i] for i in sorted(chosen)]


def _largest(record: model.TrackerRecord, show: Show) -> Section:
    s = record.most_described()
    if s is None:
        return NOTHING
    after = format_ns(s.time_ns - record.metadata.start_ns)
    columns = (col.BYTES, col.share(s.total_bytes), *_IN_WORDS)
    # Those alike in all of this are one row: a leak is many of them.
    rows: list[col.Row] = []
    for t, count in _alike(s.largest):
        nbytes = t.nbytes * count
        rows.append((nbytes, nbytes, *_in_words(t, count)))
    title = f"Largest tensors, {after} in: {show(s.total_bytes)} in live tensors"
    rest = s.total_bytes - sum(t.nbytes for t in s.largest)
    note = Note(f"{show(rest)} are in tensors that the snapshot does not describe.")
    return Section("", title, (note,) if rest > 0 else (), (Table(columns, rows),))


_IN_WORDS = col.alike(col.Text, "device", "dtype", "shape", "what", "made in")


def _alike(tensors: Sequence[model.TensorInfo]) -> list[tuple[model.TensorInfo, int]]:
    """Tensors that are alike as one with their number, those that have most bytes first."""
    return sorted(Counter(tensors).items(), key=lambda of: -of[0].nbytes * of[1])


def _in_words(t: model.TensorInfo, count: int) -> tuple[str, ...]:
    """Cells of the columns ``_IN_WORDS`` for ``count`` tensors that are alike."""
    shape = f"{count} x " * (count > 1) + (str(list(t.shape)) if t.dtype else "?")
    dtype = t.dtype.removeprefix("torch.") or "?"
    return (t.device, dtype, shape, _what(t), t.operation or "-")


def _what(t: model.TensorInfo) -> str:
    what = [
        t.name,
        t.node or "",
        t.category.value if t.category else ("requires grad" if t.requires_grad else ""),
        f"{t.tensors} tensors share it" if t.tensors > 1 else "",
    ]
    return ", ".join(w for w in what if w) or "-"


def _operations(record: model.TrackerRecord, show: Show) -> Section:
    if not record.operation_summary:
        none = "No operation was tracked: put tracker.track_operation(name) around what you want "
        return Section("", "Operations", (Note(none + "to see."),))
    columns = (
        col.Code("operation"),
        *col.alike(col.Count, "times", "failed"),
        *col.alike(col.Ns, "total", "mean", "max"),
        *col.alike(col.Figure, "tensors grew", "memory grew", "highest inside"),
    )
    every = record.operation_summary
    children: defaultdict[int, list[int]] = defaultdict(list)
    for i in sorted(range(len(every)), key=lambda i: every[i].total_ns):
        children[every[i].parent].append(i)
    stack, rows, depths = [(i, 0) for i in children[-1]], [], []
    while stack:
        i, depth = stack.pop()  # of those side by side, the one with most time
        stack += [(child, depth + 1) for child in children[i]]
        rows.append(_operation(every[i], show))
        depths.append(depth)
    names = dict.fromkeys(d for o in every for d in o.devices)
    devices = [d for d in names if d != "cpu"] or list(names)
    what = "resident memory" if devices == ["cpu"] else "allocated on " + " ".join(devices)
    note = Note(f"Memory is {what}; figures are of as many times as `in N` says.")
    table = Table(columns, rows, depth=depths, least=40, brief=_BRIEF)
    left = _left(record)
    tables = (table, left) if left.rows else (table,)
    return Section("", "Operations", (note,) if devices else (), tables)


def _left(record: model.TrackerRecord) -> Table:
    """The largest tensors that operations made and left alive, those of one operation together,
    and first those of the one that left most."""
    every = record.operation_summary
    ranked = sorted(range(len(every)), key=lambda i: -every[i].left_bytes)
    rows: list[col.Row] = []
    for i in ranked:
        for t, count in _alike(every[i].left):
            words = _in_words(t, count)
            rows.append((record.path(i), every[i].left_bytes, t.nbytes * count, *words))
    columns = (
        col.Code("operation"),
        *col.alike(col.Bytes, "left in all", "bytes"),
        *_IN_WORDS,
    )
    caption = "Largest tensors that it made and left alive, of the time that it left most"
    return Table(columns, rows, caption=caption, least=20, detail=True)


def _operation(o: model.OperationSummary, show: Show) -> col.Row:
    def grew(nbytes: int, known: int) -> str:
        return show(nbytes) + ("" if known == o.count else f" in {known:,}")

    alone = len(o.devices) == 1
    devices = [d for name, d in o.devices.items() if d.measured and (alone or name != "cpu")]
    tensors = grew(o.tensor_bytes_delta, o.tensors_measured) if o.tensors_measured else None
    return (
        o.name,
        o.count,
        o.failed,
        o.total_ns,
        o.mean_ns,
        o.max_ns,
        tensors,
        " ".join(grew(d.total_delta, d.measured) for d in devices) or None,
        " ".join(show(d.max_peak) for d in devices) or None,
    )


def _operators(record: model.TrackerRecord, show: Show) -> Section:
    o = record.pytorch_operations
    if not o.windows:
        return NOTHING
    span = format_ns(sum(w.end_ns - w.start_ns for w in o.windows))
    windows = f"{len(o.windows):,} windows of {span} together"
    windows = f"a window of {span}" if len(o.windows) == 1 else windows
    device = any(s.self_device_ns or s.self_device_bytes for s in o.operators)
    columns = [
        col.Code("operator"),
        col.Count("calls", adds=True),
        col.Ns("self CPU", adds=True),
        col.Ns("CPU"),
        col.Bytes("CPU bytes", adds=True),
    ]
    if device:
        columns.append(col.Ns("self device", adds=True))
        columns.append(col.Bytes("device bytes", adds=True))
    rows: list[col.Row] = []
    for s in o.operators:
        figures: col.Row = (s.count, s.self_cpu_ns, s.cpu_ns, s.self_cpu_bytes)
        if device:
            figures += (s.self_device_ns, s.self_device_bytes)
        rows.append((s.name, *figures))
    table = Table(tuple(columns), rows)
    tables = (table, _sequence(o.sequence)) if o.sequence else (table,)
    return Section("", f"PyTorch operators in {windows}", tables=tables)


def _sequence(calls: list[model.OperatorCall]) -> Table:
    kinds = ("CPU bytes", "device bytes")[: 1 + any(c.self_device_bytes for c in calls)]
    columns = (
        col.Code("operator"),
        col.Ns("after"),
        col.Ns("CPU"),
        *col.alike(col.Change, *kinds),
        col.Text("shapes"),
    )
    rows: list[col.Row] = []
    for c in calls:
        shapes = " ".join(str(list(s)) for s in c.shapes if s) or "-"
        nbytes = (c.self_cpu_bytes, c.self_device_bytes)[: len(kinds)]
        rows.append((c.name, c.start_ns - calls[0].start_ns, c.cpu_ns, *nbytes, shapes))
    return Table(
        columns,
        rows,
        caption=f"The last {len(calls):,} calls, in order; bytes are allocations less releases",
        depth=[c.depth for c in calls],
        least=len(rows),
    )

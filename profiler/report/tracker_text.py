"""The report of a run-time tracker's record, for the terminal."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from rich.text import Text

from ..model import MemorySnapshot, RunState, SnapshotKind, TrackerRecord
from .format import format_ns, format_share
from .page import PLAIN, Page, Style

__all__ = ["render_tracker_record"]

_STATES = {
    RunState.RUNNING: "it has not ended: the process runs, or was killed",
    RunState.STOPPED: "stopped",
    RunState.EXIT: "ended",
    RunState.EXCEPTION: "ended by an exception",
    RunState.SIGNAL: "ended by a signal",
}


def render_tracker_record(record: TrackerRecord, style: Style = PLAIN) -> str:
    """A tracker's record as text, ending in a newline."""
    page = Page(style)
    _header(page, record)
    _memory(page, record)
    _largest(page, record)
    _operations(page, record)
    _operators(page, record)
    _sources(page, record)
    return page.text()


def _header(page: Page, record: TrackerRecord) -> None:
    m = record.metadata
    began = datetime.fromtimestamp((m.perf_origin_ns + m.start_ns) / 1e9, tz=timezone.utc)
    command = " ".join(os.path.basename(a) if i == 0 else a for i, a in enumerate(m.command))
    page.line(f"Memory tracker · process {m.pid} on {m.host} · {command}")
    page.line(f"memprof {m.memprof} · torch {m.torch} · Python {m.python}")
    span = format_ns(max(m.end_ns - m.start_ns, 0))
    state = _STATES[m.state] + (f" ({m.reason})" if m.reason else "")
    page.line(f"{span} from {began.strftime('%Y-%m-%d %H:%M:%S')} UTC, {state}")
    merged = (
        f", {m.snapshots_merged:,} of them merged into later ones" if m.snapshots_merged else ""
    )
    page.line(
        f"{m.snapshots_taken:,} snapshots{merged}, one every {format_ns(m.interval_ns)}; "
        f"{m.operations_seen:,} operations; the tracker's own time {format_ns(m.cost_ns)} "
        f"({format_share(m.cost_ns, m.end_ns - m.start_ns)})"
    )
    if m.parent_pid is not None:
        page.line(f"forked from process {m.parent_pid}, which was tracked too")
    for pause in m.pauses:
        after = format_ns(pause.start_ns - m.start_ns)
        page.line(f"disabled for {format_ns(pause.end_ns - pause.start_ns)}, {after} in")
    for problem in m.problems:
        page.line(f"problem: {problem}", "yellow")


def _memory(page: Page, record: TrackerRecord) -> None:
    shown = _choose(record.snapshots, page.top)
    if not shown:
        page.section("No snapshot was taken")
        return
    devices = dict.fromkeys(
        d for s in shown for d, m in s.devices.items() if d != "cpu" and m.allocated_bytes
    )
    counted = any(s.devices["cpu"].allocated_bytes for s in shown if "cpu" in s.devices)
    page.section("Memory over time")
    columns = [">after", "snapshot", ">live tensors", ">bytes", ">resident"]
    columns += [">CPU allocated"] if counted else []
    columns += [f">{d}" for d in devices]
    table = page.table(*columns, "in operation")
    peak = max(record.snapshots, key=_height)
    for s in shown:
        what = f"{s.kind.value} {s.name}".strip() + (" *" if s is peak else "")
        cpu = s.devices.get("cpu")
        cells: list[str | Text] = [
            format_ns(s.time_ns - record.metadata.start_ns),
            Text(what + ("" if s.complete else " (old)")),
            f"{s.total_tensors:,}",
            page.bytes(s.total_bytes),
            _bytes(page, s.resident_bytes),
        ]
        if counted:
            cells.append(_bytes(page, cpu.allocated_bytes if cpu else None))
        for d in devices:
            memory = s.devices.get(d)
            cells.append(_bytes(page, memory.allocated_bytes if memory else None))
        table.add_row(*cells, Text(", ".join(s.operations) or "-"))
    page.show(table)
    hidden = len(record.snapshots) - len(shown)
    if hidden:
        page.line(f"{hidden:,} more in the file; * is the highest, see `memprof gantt`")


def _bytes(page: Page, n: int | None) -> str:
    return "-" if n is None else page.bytes(n)


def _height(s: MemorySnapshot) -> int:
    """Bytes in use: of accelerators if there are any, else resident."""
    devices = [m.highest_bytes or 0 for d, m in s.devices.items() if d != "cpu"]
    if any(devices):
        return sum(devices)
    cpu = s.devices.get("cpu")
    return (cpu.highest_bytes if cpu else s.resident_bytes) or s.total_bytes


def _choose(snapshots: list[MemorySnapshot], limit: int) -> list[MemorySnapshot]:
    """At most ``limit``, or the first, highest and last: named ones, then evenly spread."""
    if len(snapshots) <= limit:
        return snapshots
    peak = max(range(len(snapshots)), key=lambda i: _height(snapshots[i]))
    chosen = {0, peak, len(snapshots) - 1}
    marked = (SnapshotKind.CHECKPOINT, SnapshotKind.OUT_OF_MEMORY)
    named = [i for i, s in enumerate(snapshots) if s.kind in marked]
    steps = (
        [round(i * (len(snapshots) - 1) / (limit - 1)) for i in range(limit)] if limit > 1 else []
    )
    for i in (*named, *steps):
        if len(chosen) < limit:
            chosen.add(i)
    return [snapshots[i] for i in sorted(chosen)]


def _largest(page: Page, record: TrackerRecord) -> None:
    described = [s for s in record.snapshots if s.largest]
    if not described:
        return
    s = max(described, key=lambda s: s.total_bytes)
    after = format_ns(s.time_ns - record.metadata.start_ns)
    page.section(f"Largest tensors, {after} in: {page.bytes(s.total_bytes)} in live tensors")
    table = page.table(">bytes", ">share", "device", "dtype", "shape", "what", "made in")
    for t in s.largest[: page.top]:
        what = [
            t.name,
            t.node or "",
            t.category.value if t.category else ("requires grad" if t.requires_grad else ""),
            f"{t.tensors} tensors share it" if t.tensors > 1 else "",
        ]
        table.add_row(
            page.bytes(t.nbytes),
            format_share(t.nbytes, s.total_bytes),
            t.device,
            t.dtype.removeprefix("torch.") or "?",
            str(list(t.shape)) if t.dtype else "?",
            Text(", ".join(w for w in what if w) or "-"),
            Text(t.operation or "-"),
        )
    page.show(table)
    rest = s.total_bytes - sum(t.nbytes for t in s.largest[: page.top])
    page.line(f"all others {page.bytes(rest)}")


def _operations(page: Page, record: TrackerRecord) -> None:
    if not record.operation_summary:
        return
    page.section("Operations")
    table = page.table(
        "operation",
        *(">times", ">total", ">mean", ">max", ">tensors grew"),
        *(">memory grew", ">highest inside"),
    )
    children: dict[int, list[int]] = {}
    for i, o in enumerate(record.operation_summary):
        children.setdefault(o.parent, []).append(i)
    stack = [(i, 0) for i in _by_time(record, children.get(-1, []))][::-1]
    rows = 0
    while stack:
        i, depth = stack.pop()
        stack += [(c, depth + 1) for c in _by_time(record, children.get(i, []))][::-1]
        rows += 1
        if rows > 4 * page.top:
            continue
        o = record.operation_summary[i]
        devices = dict(o.devices)
        if len(devices) > 1:
            devices.pop("cpu", None)
        measured = [d for d in devices.values() if d.measured]
        grew = [page.bytes(d.total_delta) + _partly(d.measured, o.count) for d in measured]
        peaks = [page.bytes(d.max_peak) for d in measured]
        tensors = "-"
        if o.tensors_measured:
            partly = _partly(o.tensors_measured, o.count)
            tensors = page.bytes(o.tensor_bytes_delta) + partly
        table.add_row(
            Text("  " * depth + o.name),
            f"{o.count:,}" + (f" ({o.failed:,} failed)" if o.failed else ""),
            format_ns(o.total_ns),
            format_ns(o.mean_ns),
            format_ns(o.max_ns),
            tensors,
            " ".join(grew) or "-",
            " ".join(peaks) or "-",
        )
    page.show(table)
    if rows > 4 * page.top:
        page.line(f"{rows - 4 * page.top:,} more in the file")
    names = dict.fromkeys(d for o in record.operation_summary for d in o.devices)
    shown = [d for d in names if d != "cpu"] or list(names)
    if shown:
        what = "resident memory" if shown == ["cpu"] else "allocated on " + " ".join(shown)
        page.line(f"memory is {what}; figures are of as many times as `in N` says")


def _partly(known: int, count: int) -> str:
    return "" if known == count else f" in {known:,}"


def _by_time(record: TrackerRecord, positions: list[int]) -> list[int]:
    return sorted(positions, key=lambda i: -record.operation_summary[i].total_ns)


def _operators(page: Page, record: TrackerRecord) -> None:
    o = record.pytorch_operations
    if not o.windows:
        return
    span = format_ns(sum(w.end_ns - w.start_ns for w in o.windows))
    peak = f", at most {page.bytes(o.peak_cpu_bytes)} of CPU memory" if o.peak_cpu_bytes else ""
    count = len(o.windows)
    windows = f"a window of {span}" if count == 1 else f"{count:,} windows of {span} together"
    page.section(f"PyTorch operators in {windows}{peak}")
    device = any(s.self_device_ns or s.self_device_bytes for s in o.operators)
    table = page.table(
        "operator",
        *(">calls", ">self CPU", ">CPU", ">CPU bytes"),
        *((">self device", ">device bytes") if device else ()),
        "most frequent shapes",
    )
    for s in o.operators[: page.top]:
        common = s.shapes[0] if s.shapes else None
        cells = [
            f"{s.count:,}",
            format_ns(s.self_cpu_ns),
            format_ns(s.cpu_ns),
            page.bytes(s.self_cpu_bytes),
        ]
        if device:
            cells += [format_ns(s.self_device_ns), page.bytes(s.self_device_bytes)]
        shapes = " ".join(str(list(x)) for x in common.shapes if x) if common else ""
        table.add_row(
            Text(s.name), *cells, Text(f"{shapes} ({common.count:,})" if common and shapes else "-")
        )
    page.show(table)
    hidden = o.operators[page.top :]
    if hidden:
        page.line(f"{len(hidden):,} more: {format_ns(sum(s.self_cpu_ns for s in hidden))} self CPU")


def _sources(page: Page, record: TrackerRecord) -> None:
    if not record.metadata.sources:
        return
    page.section("What the figures are")
    for source in record.metadata.sources:
        if source.used:
            page.indented(f"{source.name}: {source.sees}. Not: {source.misses}.", 2)
    unused = [s for s in record.metadata.sources if not s.used]
    if unused:
        page.indented("Not used: " + "; ".join(f"{s.name} ({s.misses})" for s in unused) + ".", 2)

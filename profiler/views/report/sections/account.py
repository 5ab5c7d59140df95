"""All that was reserved: on a device, where the first line is what must fit and all lines of the
table add up to it; and in pools of CUDA graphs, what each capture added, who shares what, and what
stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from memprof.profiler import model
from memprof.profiler.live.graph_pools import label, leaks, left_behind
from memprof.profiler.views.report import columns as col, failure as words
from memprof.profiler.views.report.format import format_both, format_ns
from memprof.profiler.views.report.parts import EAGER, FREE, ROUNDING, UNATTRIBUTED, DevicePeak
from memprof.profiler.views.report.section import NOTHING, Note, Section, Show, Table, Tone, of_rows

_BRIEF = 6
"""Uses of memory in a short text."""
_NO_PYTHON = "(no Python was running)"
_AUTOGRAD = "(no Python was running: autograd)"


def of_accounts(
    accounts: Iterable[model.DeviceAccount], show: Show, peaks: Iterable[DevicePeak] = ()
) -> tuple[Section, ...]:
    of = {p.device: p for p in peaks}
    sections = [_of_account(a, show, of.get(a.device)) for a in accounts]
    # The one with most comes first.
    return (*sections[:1], *(replace(s, detail=True, name="other devices") for s in sections[1:]))


def _of_account(a: model.DeviceAccount, show: Show, peak: DevicePeak | None) -> Section:
    every: tuple[Section, ...] = (_purposes(a), _outside(a))
    if peak is not None:
        now = replace(_purposes(a), detail=True, name="what is reserved now")
        every = (_peak(peak), now, _outside(a))
    if a.present:
        every += (_holders(a),)
    else:
        modules = _groups(a, "module", lambda r: r.modules or "(outside of modules)")
        every += (
            replace(modules, detail=True, name="modules of all reserved memory"),
            replace(_groups(a, "source line", _location), name="its source lines", spare=1),
            replace(_blocks(a), detail=True, name="its blocks"),
            replace(_host_reads(a), detail=True, name="reads of values"),
        )
    simulated = ", simulated: kernels computed nothing" if a.simulated else ""
    named = f"{a.name or a.device}, {show(a.total)}{simulated}"
    if a.failure is None:
        return Section("", named, *_about(a, show), parts=every)
    return Section("", *_failed(a, a.failure, named, show), parts=every)


def _failed(
    a: model.DeviceAccount, f: model.AllocationFailure, device: str, show: Show
) -> tuple[str, tuple[Note, ...]]:
    notes = [Note(f.frame.code, Tone.STRONG)] if f.frame is not None and f.frame.code else []
    notes.append(Note(f"it did not fit: {words.why(a, f, show)}", Tone.ERROR))
    if f.activity:
        text = f"memprof was {f.activity}; a call that fails there is made again without"
        notes.append(Note(text, Tone.WARN))
    here = f"failed {f.count:,} times here" if f.count > 1 else ""
    others = f"{f.earlier:,} other requests had failed before" if f.earlier else ""
    if here or others:
        notes.append(Note("; ".join(filter(None, (here, others))), Tone.WARN))
    notes += [
        Note(f"{device}{_in_phase(a)}"),
        Note(f"{format_both(a.reserved, show)} reserved, {show(f.left(a.reserved))} left"),
    ]
    if f.outside:
        text = f"{show(f.outside)} outside of torch's allocator: CUDA, libraries, others"
        notes.append(Note(text))
    notes += [Note(note, Tone.WARN) for note in a.notes]
    title = f"Out of memory on {a.device}: {words.asked(f, show)} asked for {words.asker(f)}"
    return title, tuple(notes)


def _about(a: model.DeviceAccount, show: Show) -> tuple[tuple[Note, ...], tuple[Table, ...]]:
    reserved = f"{format_both(a.reserved, show)}{_in_phase(a)}"
    gone = a.most_allocated - a.allocated if a.present else 0
    more = f": {show(gone)} more than now, of which nobody took note" if gone > 0 else ""
    notes = [
        Note(f"Peak reserved on {a.device}: {reserved}"),
        Note(f"{show(a.most_allocated)} allocated at most{more}"),
    ]
    if a.outside:
        notes.append(Note(f"{show(a.needed)} with what is outside of torch's allocator"))
    if a.elapsed_ns:
        steps = f"{a.steps:,} optimizer step{'s' if a.steps != 1 else ''} in " if a.steps else ""
        notes.append(Note(f"{steps}{format_ns(a.elapsed_ns)}; ended: {a.ended}"))
    notes += [Note(note, Tone.WARN) for note in a.notes]
    columns = (col.Text(""), col.Times("times", adds=True), col.MODULE, col.LINE)
    failed = [
        (f"out of memory: {show(f.nbytes)} asked for", f.count, f.modules, f.frame)
        for f in a.failed
    ]
    table = Table(columns, failed, rest="more requests could not be served", lines=True)
    return tuple(notes), (table,) if failed else ()


def _in_phase(a: model.DeviceAccount) -> str:
    if a.phase == "optimizer":
        return f" in optimizer step {a.step}"
    return f" in the {a.phase} of step {a.step}" if a.phase else ""


def _purposes(a: model.DeviceAccount) -> Section:
    uses = {p.label for p in a.by_category()}
    parts = [(n, what) for what, n in a.parts() if n or what == "not explained"]
    rows = [row for row in parts if row[1] in uses]
    others = [row for row in parts if row[1] not in uses]
    return Section("", f"What is reserved {_when(a)}", tables=(_sum(a.reserved, rows, others),))


def _sum(
    reserved: int, rows: Sequence[tuple[int, str]], others: Sequence[tuple[int, str]]
) -> Table:
    foot = (*others, (reserved, "total reserved"))
    return Table(
        (col.BYTES, col.share(reserved), col.Text("what")),
        [(n, n, what) for n, what in rows],
        tuple((n, n, what) for n, what in foot),
        least=len(rows),
        brief=_BRIEF,
    )


def _peak(peak: DevicePeak) -> Section:
    some = [(n, what) for n, what in ((peak.eager, EAGER), (peak.rounding, ROUNDING)) if n]
    others = [*some, (peak.unattributed, UNATTRIBUTED), (peak.free, FREE)]
    note = Note("compiled code at its own peak; parameters, state and tensors as they are now")
    table = _sum(peak.reserved, [(n, what) for what, n in peak.parts], others)
    return Section("", "What was reserved at the peak", (note,), tables=(table,))


def _holders(a: model.DeviceAccount) -> Section:
    tensors = col.Count("tensors", adds=True)
    columns = (col.BYTES, tensors, col.Text("what"), col.Text("who has it"))
    rows = [(r.nbytes, r.count, r.what, r.holder or None) for r in a.rows]
    section = of_rows("Live now, largest first", columns, rows, brief=_BRIEF // 2)
    return replace(section, name="who has what is live now", spare=2)


def _when(a: model.DeviceAccount) -> str:
    if a.present:
        return "now"
    return "at the peak" if a.failure is None else "at that moment"


def _outside(a: model.DeviceAccount) -> Section:
    rows = [(o.nbytes, o.what, f"{'estimate: ' * o.estimated}{o.source}") for o in a.outside]
    columns = (col.BYTES, col.Text("what"), col.Text("from", fold=True))
    section = of_rows("Outside of torch's allocator", columns, rows, least=len(rows))
    # Its sum stands above.
    return replace(section, name="what is outside of the allocator", spare=5)


def _groups(a: model.DeviceAccount, by: str, key: Callable[[model.Held], str]) -> Section:
    found: Counter[tuple[str, ...]] = Counter()
    beside = _library(a) if key is _location else ()
    for r in a.rows:
        found[(key(r), *(words.line_of(r.library) for _ in beside))] += r.nbytes
    rows: list[col.Row] = [(n, n, *names) for names, n in found.most_common()]
    columns = (col.BYTES, col.share(a.live), col.Path(by), *beside)
    return of_rows(f"Live {_when(a)} by {by}", columns, rows, brief=_BRIEF)


def _library(a: model.DeviceAccount) -> tuple[col.Column, ...]:
    """A column for lines of libraries beside those of the program, where there are any."""
    return (col.Path("in library"),) if any(r.library for r in a.rows) else ()


def _location(r: model.Held) -> str:
    return words.line_of(r.frame) or _nowhere(r)


def _nowhere(r: model.Held) -> str:
    return r.holder or (f"({model.BEFORE})" if r.detail == model.BEFORE else _AUTOGRAD)


def _blocks(a: model.DeviceAccount) -> Section:
    beside = _library(a)
    columns = (
        col.BYTES,
        col.BLOCKS,
        *col.alike(col.Text, "what", "code"),
        *col.ASKED_FOR,
        *beside,
    )
    rows: list[col.Row] = []
    for r in a.rows:
        eager = r.frame is not None and not (r.waits or r.nodes)
        code = "compiled" if r.compiled else "eager" if eager else "autograd"
        code = "" if r.frame is None and (r.holder or r.detail == model.BEFORE) else code
        by = (
            r.frame or _nowhere(r),
            r.modules,
            r.nodes,
            *(words.line_of(r.library) for _ in beside),
        )
        rows.append((r.nbytes, r.count, r.what, code, *by))
    return of_rows(f"Live {_when(a)}, largest first", columns, rows)


def _host_reads(a: model.DeviceAccount) -> Section:
    count = sum(r.count for r in a.host_reads)
    times = "once" if count == 1 else f"{count:,} times"
    rows = [(r.count, r.nbytes, r.frame or _AUTOGRAD) for r in a.host_reads]
    columns = (col.Count("times", adds=True), col.BYTES, col.LINE)
    return of_rows(f"The program looked at values {times}; kernels computed none", columns, rows)


def of_graph_pool(pool: model.GraphPool, show: Show) -> Section:
    outside = (_rows(pool.outside),) if pool.outside else ()
    parts = (
        _left(pool, show),
        _at_peak(pool, show),
        Section("", "What is in the pool that no capture asked for", tables=outside),
    )
    title = f"CUDA graphs in pool {pool.name} on {pool.device}"
    captures = (_captures(pool),) if pool.graphs else ()
    return Section("", title, tuple(_about_pool(pool, show)), captures, parts)


def _about_pool(pool: model.GraphPool, show: Show) -> list[Note]:
    notes = [Note(f"Reserved: {format_both(pool.reserved, show)}")]
    if not pool.graphs:
        return [*notes, Note("nothing was captured into it")]
    if pool.gone:
        text = "as it was after the last capture: by the end all its graphs were deleted, "
        notes.append(Note(f"{text}{show(pool.at_end)} of it are left"))
    alone = sum(s.nbytes for s in pool.shares if len(s.graphs) == 1)
    text = (
        f"{show(pool.shared)} are used by more than one graph, {show(alone)} by one alone, "
        f"{show(pool.live_outside)} by what no capture asked for, {show(pool.unused)} by nobody"
    )
    notes.append(Note(text))
    return notes + [Note(note, Tone.WARN) for note in pool.notes]


def _captures(pool: model.GraphPool) -> Table:
    columns = (
        col.Bytes("pool grew", help="By how much, during the capture", adds=True),
        col.Bytes("at once", help="The most that it had asked for at one instant"),
        col.Bytes("alone", help="Bytes of the pool that no other graph uses", adds=True),
        col.Bytes("stays", help="Bytes that no later capture can have", adds=True),
        col.Code("graph"),
        *col.below(col.Frame("at")),
    )
    rows: list[col.Row] = [
        (g.grew, g.peak, g.alone, g.stays, _state(g), g.frame or g.maker) for g in pool.graphs
    ]
    none = (None,) * 3
    foot = (
        (pool.grew_outside, *none, "outside of captures", None),
        (pool.reserved, *none, "total reserved", None),
    )
    return Table(columns, rows, foot)


def _state(g: model.GraphCapture) -> str:
    if g.failed:
        return f"{label(g)} (failed: {g.failed})"
    return f"{label(g)} (deleted)" if g.deleted else label(g)


def _left(pool: model.GraphPool, show: Show) -> Section:
    found = left_behind(pool)
    columns = (col.BYTES, col.Count("captures"), col.BLOCKS, col.Text("what"), *col.ASKED_FOR)
    rows = [
        (r.nbytes, len(graphs), r.count, r.what, r.frame or _NO_PYTHON, r.modules, r.nodes)
        for r, graphs in found
    ]
    leaked = sum(row.nbytes for row, graphs in found if leaks(row, graphs))
    text = f"{show(leaked)} stay from capture to capture, and nobody in Python holds them"
    notes = (Note(text, Tone.WARN),) if leaked else ()
    return of_rows("What captures left in the pool", columns, rows, *notes)


def _at_peak(pool: model.GraphPool, show: Show) -> Section:
    graph = max(pool.graphs, key=lambda g: g.peak, default=None)
    if graph is None or not graph.at_peak:
        return NOTHING
    title = f"What graph {label(graph)} had asked for at its peak, {show(graph.peak)}"
    return Section("", title, tables=(_rows(graph.at_peak, graph.rounding),))


def _rows(found: list[model.Held], rounding: int = 0) -> Table:
    rows = [(r.nbytes, r.count, r.what, r.frame or _NO_PYTHON, r.modules, r.nodes) for r in found]
    foot = ((rounding, None, "rounding", None, None, None),) if rounding else ()
    return Table((col.BYTES, col.BLOCKS, col.Text("what"), *col.ASKED_FOR), rows, foot)

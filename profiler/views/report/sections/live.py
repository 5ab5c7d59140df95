"""Live memory of compiled code: the peak, what was live at it, what is saved, each graph."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.profiler.live.attribution import Share, View
from memprof.profiler.model import Category, Profile
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.failure import line_of
from memprof.profiler.views.report.format import format_both, format_ns, format_share, shorten_path
from memprof.profiler.views.report.section import (
    EVERY,
    UNATTRIBUTED,
    Note,
    Section,
    Show,
    Table,
    Tone,
)
from memprof.profiler.views.report.summary import Summary

from .about import MEANING, VIEWS

_DESCRIBED = 10
"""Graphs whose inputs and outputs are listed."""
_BRIEF = 4
"""Source lines of a short text."""
_WAITING, _HELD, _HELD_SHARE = 2, 1 << 20, 0.02
"""Calls without a backward that are worth a word, bytes that they can hold, and these as a part of
the peak."""
_CODE = 100
"""Characters of generated code in a note."""


def peak(s: Summary, show: Show) -> Section:
    p = s.peak
    if p is None:
        none = "No call of a compiled graph was recorded, so there is no peak."
        return Section("peak", "", (Note(none),))
    after = f"{format_ns(p.after_ns)} after the first call began"
    notes = [Note(f"in call {p.call + 1:,} of {s.calls:,}, {p.graph}, {after}")]
    if p.line:
        code = p.statement if len(p.statement) <= _CODE else f"{p.statement[:_CODE]}…"
        at = f"after line {p.line} of the generated code"
        notes.append(Note(at + (f": {code}" if code else ""), detail=True))
    elif p.instant == 0:
        notes.append(Note("at the entry of the call"))
    if p.node:
        notes.append(Note(", ".join(filter(None, (f"for FX node {p.node}", line_of(p.frame))))))
    others = [f"{d} {show(n)}" for d, n in s.device_peaks.items() if d != s.device]
    if others:
        notes.append(Note("other devices: " + ", ".join(others), detail=True))
    if s.unobserved_calls:
        text = f"{s.unobserved_calls:,} of {s.calls:,} calls were not observed: what they allocate "
        notes.append(Note(text + "is not counted", Tone.WARN))
    for row in s.table:
        held = row.waiting * (row.saved or 0)
        if row.waiting >= _WAITING and held >= max(_HELD, _HELD_SHARE * p.nbytes):
            text = f"{row.waiting:,} of {row.calls:,} calls of {row.label} had no backward: what "
            text += f"each saved, {show(row.saved or 0)}, is held as long as its outputs are, and "
            notes.append(Note(f"{text}is not in this peak", Tone.WARN))
    known = f"Peak of known live memory on {s.device}: {format_both(p.nbytes, show)}"
    return Section("peak", known, tuple(notes))


def of_instant(profile: Profile) -> Iterator[Section]:
    if len(profile.calls):
        yield Section("over-time", "Memory over time", view="timeline")
        yield Section("live-set", "Live set", view="live")


def operations(profile: Profile) -> Section:
    tracked = profile.tracker is not None and profile.tracker.operation_summary
    title = "Operations and calls" if tracked else "Calls"
    note = f"{profile.calls.dropped:,} calls before the first one shown are no longer in the log."
    notes = (Note(note),) if profile.calls.dropped else ()
    return Section("operations", title, notes, view="gantt" * bool(tracked or len(profile.calls)))


def _live_columns(view: View, total: int = 0) -> tuple[col.Column, ...]:
    return (col.BYTES, col.share(total), col.Count("storages", adds=True), *VIEWS[view])


def templates() -> dict[str, Table]:
    """The tables of a page that it fills itself, by name: the views of a chosen instant, what a
    row of them is made of, bars over time."""
    parts = (
        col.BYTES,
        col.Count("storages"),
        col.Code("name"),
        col.Text("source line", fold=True),
        col.MODULE,
        col.Text("live because", fold=True),
    )
    bars = (col.Code("bar"), *col.alike(col.Ns, "begins", "duration"), col.Figure("live set"))
    live = {view.value: Table(_live_columns(view)) for view in View}
    return {**live, "parts": Table(parts), "bars": Table(bars, caption="Bars")}


def peak_breakdowns(s: Summary, show: Show) -> Iterator[Section]:
    """The live set at the peak, for a text; a page shows that of any instant."""
    if s.peak is None:
        return
    labels: dict[int | None, str] = {row.id: row.label for row in s.table}

    def row(view: View, p: Share) -> col.Row:
        key = p.key
        more: col.Row = ()
        if view is View.NODE:
            more = (labels.get(p.graph, "-"), p.note or "-")
        elif view is View.CATEGORY:
            more = (MEANING.get(Category(key), ""),)
        elif view is View.LINE:
            more = (p.note,)
            key = key if key.startswith("(") else shorten_path(key)
        elif view is View.MODULE:
            key = key or "(root)"
        return (p.nbytes, p.nbytes, p.storages, key, *more)

    # Where the device has an account, that says what the peak is made of.
    watched = {a.device for a in s.profile.accounts if not a.present}
    elsewhere = {View.CATEGORY: watched | {p.device for p in s.at_peak}, View.LINE: watched}
    for view in (View.CATEGORY, View.LINE, View.MODULE, View.NODE):
        b = s.views[view]
        detail = view not in elsewhere or s.device in elsewhere[view]
        title = f"Live at the peak, by {VIEWS[view][0].title}"
        name = f"compiled code by {VIEWS[view][0].title}"
        columns = _live_columns(view, b.total)
        if view is View.CATEGORY:
            columns += (col.Text("that is"),)
        blank = ("",) * (len(columns) - 4)
        foot: list[col.Row] = [
            (b.unattributed, b.unattributed, "", UNATTRIBUTED, *blank),
            (b.total, b.total, "", "total", *blank),
        ]
        state = s.profile.optimizer_state.get(s.device, 0)
        known = s.profile.accounts or any(p.key == Category.OPTIMIZER_STATE.value for p in b.parts)
        if view is View.CATEGORY and state and not known:
            text = "beside compiled calls, as it is at the end"
            foot.append((state, None, "", Category.OPTIMIZER_STATE.label, text))
        rows = [row(view, p) for p in b.parts]
        least, brief = (len(Category), EVERY) if view is View.CATEGORY else (1, _BRIEF)
        tables = (Table(columns, rows, foot, least=least, brief=brief, rest="smaller"),)
        notes: tuple[Note, ...] = ()
        none = sum(p.nbytes for p in b.parts if p.key.startswith("("))
        if view is View.LINE and none:
            part = f"{show(none)}, {format_share(none, b.total)}"
            notes = (Note(f"{part}, have no line: compiled code did not make them"),)
        spare = 2 if view is View.LINE else 1
        yield Section("", title, notes, tables, detail=detail, name=name, spare=spare)


def graphs(s: Summary) -> Section:
    columns = (
        col.Code("graph"),
        col.Count("calls", adds=True),
        col.Ns("median", help="Duration of a call on the host"),
        col.Bytes("allocated", help="All allocations of a call added up"),
        col.Bytes("peak", help="Most bytes live inside a call, its inputs included"),
        col.Bytes("saved", help="Left for the backward"),
        col.Count("programs", help="One for each combination of sizes"),
    )
    ordered = sorted(s.table, key=lambda r: (-(r.peak or 0), r.id))
    rows = [
        (r.label, r.calls, r.median_ns, r.allocated, r.peak, r.saved, r.programs) for r in ordered
    ]
    none = "No graph was compiled while the profile was taken."
    tables = (Table(columns, rows, least=10, empty=none), _unobserved(s))
    shown = tuple(t for t in tables if t.rows or t.empty)
    title = "Graphs; bytes of one call of the most called program"
    return Section("graphs", title, tables=shown, detail=True, name="graphs")


def descriptions(profile: Profile) -> Section:
    """Inputs and outputs of the graphs that are called most."""
    most_called = sorted(profile.graphs, key=lambda g: (-g.calls, g.id))[:_DESCRIBED]
    tables = [
        Table(
            (col.Text(""),),
            [(line,) for line in str(graph.description).splitlines()],
            caption=graph.label,
            least=EVERY,
            lines=True,
        )
        for graph in most_called
    ]
    return Section(
        "inputs",
        "Inputs and outputs",
        tables=tuple(tables),
        detail=True,
        name="inputs and outputs of graphs",
    )


def _unobserved(s: Summary) -> Table:
    labels = {r.id: r.label for r in s.table}
    return Table(
        (col.Count("calls", adds=True), col.Text("graph"), col.Text("why", fold=True)),
        [(u.calls, labels[u.graph], u.reason) for u in s.unobserved],
        caption="Calls that were not observed: what they allocate is not counted",
        rest="more graphs",
        lines=True,
    )

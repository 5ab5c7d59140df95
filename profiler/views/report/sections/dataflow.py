"""Live memory of all code, eager and compiled, as the events of ``torch.profiler`` tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from memprof.profiler.live.attribution import View
from memprof.profiler.model.dataflow import NO_EVENTS
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.format import format_ns
from memprof.profiler.views.report.parts import DataFlowPeak
from memprof.profiler.views.report.section import Note, Section, Show, Table, Tone

_MOST = 300
"""Rows of a view in a page, the largest; the rest is added up."""


def dataflow(peaks: Iterable[DataFlowPeak], show: Show) -> Section:
    parts = []
    for p in peaks:
        title = f"Data flow on {p.device}, eager code included: peak {show(p.nbytes)}, "
        title += f"{format_ns(p.after_ns)} into the torch.profiler run"
        tables = (_categories(p), *map(partial(_by, p), _VIEWS))
        shown = tuple(table for table in tables if table.rows)
        name = "data flow by source line, module and operator"
        notes = tuple(_notes(p))
        view = f"curve dataflow {p.device}"
        parts.append(Section("", title, notes, shown, view=view, name=name, spare=3))
    none = Note(f"The torch.profiler run has {NO_EVENTS}.", Tone.WARN)
    notes = () if parts else (none,)
    return Section("dataflow", "Data flow, eager code included", notes, parts=tuple(parts))


def _categories(p: DataFlowPeak) -> Table:
    columns = (col.BYTES, col.share(p.nbytes), col.CATEGORY)
    rows = [(n, n, category.value) for category, n in p.categories.items()]
    foot = ((p.nbytes, p.nbytes, "total"),)
    return Table(columns, rows, foot, least=len(rows))


_VIEWS = {View.LINE: "source line", View.MODULE: "module", View.NODE: "operator"}


def _notes(p: DataFlowPeak) -> Iterator[Note]:
    yield Note(f"{p.times:,} changes.", detail=True)
    for note in p.notes:
        yield Note(f"{note}.", detail=True)


def _by(p: DataFlowPeak, view: View) -> Table:
    found = p.views[view]
    caption = f"By {_VIEWS[view]} at that peak"
    columns = (col.BYTES, col.share(found.total), col.Code(view.value))
    rows = [
        *((s.nbytes, s.nbytes, s.key or "(root)") for s in found.parts),
        *((s.nbytes, s.nbytes, f"({s.key})") for s in found.remainder),
    ]
    rows = sorted(rows, key=lambda row: -row[0])
    detail = view is not View.LINE
    return Table(columns, rows, caption=caption, most=_MOST, rest="smaller", detail=detail)

"""Sections on growth from one profile to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memprof.profiler.views.compare.diff_model import ProfileDiff, Quantity
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.section import EVERY, Note, Section, Table, Tone, of_rows

_TITLES = {
    "peak": "peak of known live memory",
    "saved": "saved for the backward, a step",
    "allocated": "allocated, a step",
    "pool": "pool of graph trees",
    "reserved": "all that was reserved at the peak",
    "reserved end": "all that was reserved in the end",
}


def of_diff(diff: ProfileDiff) -> Iterator[Section]:
    before, after = diff.devices
    both = before if before == after else f"{before} → {after}"
    titles = [_title(q) for q in diff.quantities]
    compared = _quantities(zip(titles, diff.quantities, strict=True))
    title = f"Memory on {both}" if both else ""
    yield Section("", title, tables=(compared,) if diff.quantities else ())
    if diff.notes:
        notes = tuple(Note(f"not compared: {note}", Tone.WARN) for note in diff.notes)
        yield Section("", "", notes)
    for name, q in zip(titles, diff.quantities, strict=True):
        for view, changes in q.views.items():
            columns = (
                col.Change("change", adds=True),
                *col.alike(col.Bytes, "before", "after"),
                col.Code(view),
            )
            cells = [(c.change, c.before, c.after, c.key) for c in changes]
            title = f"{name}: what changed, by {view}"
            if changes:
                yield of_rows(title, columns, cells, rest="smaller changes")


def _quantities(rows: Iterable[tuple[str, Quantity]]) -> Table:
    columns = (
        col.Text(""),
        *col.alike(col.Bytes, "before", "after"),
        col.Change("change"),
        col.Figure(""),
    )
    cells = [(name, q.before, q.after, q.change, _growth(q)) for name, q in rows]
    return Table(columns, cells, least=EVERY)


def _title(q: Quantity) -> str:
    name = _TITLES[q.name]
    return f"{name}, {q.device}" if q.device else name


def _growth(q: Quantity) -> str:
    if not q.change:
        return "0.0 %"
    return "new" if not q.before else f"{100 * q.growth:+.1f} %"

"""What grew from one profile to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...diff_model import ProfileDiff, Quantity, SavedChange, SavedKind
from ..columns import Cell, Column, Unit, alike
from ..format import format_bytes
from ..section import EVERY, Note, Section, Table, Tone, of_rows

_TITLES = {
    "peak": "peak of known live memory",
    "saved": "saved for the backward, a step",
    "allocated": "allocated, a step",
    "pool": "pool of graph trees",
    "tracker peak": "most allocated",
    "tracker reserved": "most reserved",
    "tracker tensors": "most in Python tensors",
    "tracker end": "allocated at the end",
    "data-flow peak": "peak of the data flow",
    "reserved": "all that was reserved",
}


def of_diff(diff: ProfileDiff) -> Iterator[Section]:
    """All quantities, then of each what changed."""
    before, after = diff.devices
    both = before if before == after else f"{before} → {after}"
    compared = _quantities([(_title(q), q) for q in diff.quantities])
    title = f"Memory on {both}" if both else ""
    yield Section("", title, tables=(compared,) if diff.quantities else ())
    if diff.operations:
        rows = sorted(
            (q for q in diff.operations if q.change), key=lambda q: (-abs(q.change), q.label)
        )
        same = len(diff.operations) - len(rows)
        table = _quantities([(q.label, q) for q in rows], 1)
        note = Note(f"{same:,} figures did not change.")
        yield Section("", "Operations", (note,), (table,) if rows else ())
    if diff.notes:
        yield Section(
            "", "", tuple(Note(f"not compared: {note}", Tone.WARN) for note in diff.notes)
        )
    yield from _saved(diff)
    for q in diff.quantities:
        for view, changes in q.views.items():
            columns = (
                Column("change", Unit.CHANGE, adds=True),
                *alike(Unit.BYTES, "before", "after"),
                Column(view, Unit.CODE),
            )
            cells = [(c.change, c.before, c.after, c.key) for c in changes]
            title = f"{_title(q)}: what changed, by {view}"
            if changes:
                yield of_rows(title, columns, cells, rest="smaller changes")


def _saved(diff: ProfileDiff) -> Iterator[Section]:
    """Values that are saved for the backward on one side alone, or otherwise."""
    sides = {SavedKind.NEW: "after", SavedKind.GONE: "before"}
    for device in dict.fromkeys(c.device for c in diff.saved):
        for kind in SavedKind:
            found = [c for c in diff.saved if c.kind is kind and c.device == device]
            if not found:
                continue
            sums = {"before": sum(c.before for c in found), "after": sum(c.after for c in found)}
            shown = [sides[kind]] if kind in sides else ["before", "after"]
            if kind is SavedKind.OPERATOR:
                shown = ["after"]
            columns = (
                *alike(Unit.BYTES, *(shown if len(shown) > 1 else ["bytes"]), adds=True),
                Column("tensors", Unit.COUNT),
                Column("type"),
                *alike(Unit.CODE, "operator", "module", "line"),
            )
            where = "" if device == diff.devices[1] else f", {device}"
            said = " → ".join(format_bytes(sums[s]) for s in shown)
            title = f"{kind.value[:1].upper()}{kind.value[1:]}, for the backward{where}: {said}"
            yield of_rows(title, columns, [_row(c, shown) for c in found])


def _row(c: SavedChange, shown: list[str]) -> tuple[Cell, ...]:
    sizes = {"before": c.before, "after": c.after}
    return (*(sizes[s] for s in shown), c.count, c.types, c.op, c.module, c.line)


def _quantities(rows: Iterable[tuple[str, Quantity]], least: int = EVERY) -> Table:
    columns = (
        Column(""),
        *alike(Unit.BYTES, "before", "after"),
        Column("change", Unit.CHANGE),
        Column("", Unit.FIGURE),
    )
    cells = [(name, q.before, q.after, q.change, _growth(q)) for name, q in rows]
    return Table(columns, cells, least=least, rest="smaller changes")


def _title(q: Quantity) -> str:
    name = _TITLES[q.name]
    if q.device == "cpu" and q.name == "tracker peak":
        name = "most resident"  # the process's, which is what the tracker knows of the CPU
    return f"{name}, {q.device}" if q.device else name


def _growth(q: Quantity) -> str:
    if not q.change:
        return "0.0 %"
    return "new" if not q.before else f"{100 * q.growth:+.1f} %"

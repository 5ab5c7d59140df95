"""Memory that is held across steps and grows: the first thing that a report says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...model import Growth, GrowthSource
from ..columns import Column, Unit, alike
from ..failure import place
from ..section import Note, Section, Show, Table, Tone

_MOST, _SHORT = 5, 3
"""Findings of a report, and of a short one; ``memprof leaks`` has all."""


def of_growth(found: Sequence[Growth], show: Show, most: int = _MOST) -> Section:
    """What grows, most a step first; nothing where nothing does."""
    parts = tuple(
        replace(_finding(n, g, show), detail=n > _SHORT) for n, g in enumerate(found[:most], 1)
    )
    notes = []
    if len(found) > most:
        notes.append(Note(f"{len(found) - most:,} more: memprof leaks FILE", Tone.DIM))
    total = sum(g.nbytes for g in found)
    title = f"Memory grows: {show(total)} are held that every step adds to"
    return Section("growth", title if found else "", tuple(notes), parts=parts, tone=Tone.WARN)


def _finding(number: int, g: Growth, show: Show) -> Section:
    who = g.holder or (f"what {place(g.frame)} makes" if g.frame is not None else "unknown")
    title = f"{number}. {show(g.a_step)} per {g.step}, {show(g.nbytes)} by now: {who}"
    notes = []
    if g.frame is not None:
        code = f": {g.frame.code}" if g.frame.code else ""
        notes.append(Note(f"made at {place(g.frame)}{code}"))
    notes.append(Note(f"on {g.device}, since {_since(g)}; {_SEEN[g.source]}"))
    columns = (
        Column("", Unit.BYTES, adds=True),
        Column("blocks", Unit.COUNT, adds=True),
        *alike(Unit.CODE, "", ""),
        Column("", Unit.FRAME),
    )
    rows = [(p.nbytes, p.count, p.what, p.modules, p.frame) for p in g.parts]
    table = Table(
        columns, rows, caption="What is held", most=4, lines=True, folded=True, detail=True
    )
    return Section("", title, tuple(notes), (table,) if rows else ())


def _since(g: Growth) -> str:
    if g.source is GrowthSource.TRACKER:
        return f"snapshot {g.since:,} of {g.steps:,}"
    return f"{g.step} {g.since:,} of {g.steps:,}"


_SEEN = {
    GrowthSource.ALLOCATOR: "every block that is still there was counted",
    GrowthSource.DATA_FLOW: "seen by torch.profiler",
    GrowthSource.COMPILED: "forwards without a backward, whose saved memory is still held",
    GrowthSource.TRACKER: "seen in the tracker's snapshots; eager=True names lines",
}

"""Several ranks of one job side by side."""

from __future__ import annotations

from ...ranks import Imbalance, RankSummary
from ..columns import Column, Unit, alike
from ..format import format_ns
from ..section import EVERY, Note, Section, Show, Table, Tone


def of_ranks(s: RankSummary, show: Show) -> Section:
    """How ranks compare, and where they differ."""
    highest = max((r.peak for r in s.rows), default=0)
    columns = (
        Column("rank", Unit.COUNT),
        Column("peak", Unit.BYTES),
        Column("of the highest", Unit.SHARE, whole=highest, only="page"),
        Column("steps", Unit.COUNT),
        Column("median step", Unit.NS),
        *alike(Unit.COUNT, "graphs", "calls", "recompiled", "skips"),
        Column("device"),
        *alike(Unit.TEXT, "host", "pid", below=True),
        Column("state", below=True, only="page"),
    )
    rows = [
        (
            *(r.rank, r.peak, r.peak, r.steps, r.step_ns, r.graphs, r.calls, r.recompiles, r.skips),
            *(r.device, r.host or "-", str(r.pid or "-"), "" if r.complete else "incomplete"),
        )
        for r in s.rows
    ]
    imbalance = (
        Column("figure", Unit.CATEGORY),
        Column("lowest", Unit.FIGURE),
        Column("rank", Unit.COUNT),
        *alike(Unit.FIGURE, "mean", "highest"),
        Column("rank", Unit.COUNT),
        Column("above the mean", Unit.FIGURE),
    )
    figures = [
        (
            *(i.name, _figure(i, i.lowest, show), i.lowest_rank, _figure(i, i.mean, show)),
            *(_figure(i, i.highest, show), i.highest_rank, f"{100 * i.excess:.1f} %"),
        )
        for i in s.imbalance
    ]
    note = Note("Categories are of the live set at each rank's peak.")
    parts = (
        Section("", "By rank", tables=(Table(columns, rows, least=EVERY),)),
        Section("", "Imbalance", (note,), (Table(imbalance, figures, least=EVERY),)),
    )
    warnings = tuple(Note(warning, Tone.WARN) for warning in s.warnings)
    more = Note("The report of one rank: memprof report FILE --rank N", Tone.DIM)
    title = f"{len(s.rows):,} of {s.world_size:,} ranks"
    return Section("ranks", title, (*warnings, more), parts=parts)


def _figure(i: Imbalance, value: float, show: Show) -> str:
    return show(round(value)) if i.unit == "bytes" else format_ns(value)

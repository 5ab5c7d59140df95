"""Several processes side by side: the ranks of one job."""

from __future__ import annotations

from memprof.profiler.views.compare.ranks import RankSummary
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.section import EVERY, Note, Section, Table, Tone


def of_ranks(s: RankSummary) -> Section:
    who = "rank" if s.world_size else "run"
    columns = (
        col.Count(who),
        col.Bytes("peak"),
        *col.alike(col.Count, "graphs", "calls", "recompiled", "skips"),
        col.Text("device"),
        *col.below(col.Text("host"), col.Text("pid")),
    )
    rows = [
        (
            r.rank,
            r.peak,
            r.graphs,
            r.calls,
            r.recompiles,
            r.skips,
            r.device,
            r.host or "-",
            str(r.pid or "-"),
        )
        for r in s.rows
    ]
    imbalance = (
        col.Words("figure"),
        col.Bytes("lowest"),
        col.Count(who),
        *col.alike(col.Bytes, "mean", "highest"),
        col.Count(who),
        col.Figure("above the mean"),
    )
    figures = [
        (
            i.name,
            i.lowest,
            i.lowest_rank,
            round(i.mean),
            i.highest,
            i.highest_rank,
            f"{100 * i.excess:.1f} %",
        )
        for i in s.imbalance
    ]
    note = Note(f"Categories are of each {who}'s peak.")
    parts = (
        Section("", f"By {who}", tables=(Table(columns, rows, least=EVERY),)),
        Section("", "Imbalance", (note,), (Table(imbalance, figures, least=EVERY),)),
    )
    warnings = tuple(Note(warning, Tone.WARN) for warning in s.warnings)
    more = Note(f"The report of one {who}: memprof report FILE --rank N", Tone.DIM)
    of = f"of {s.world_size:,} ranks" if s.world_size else "runs"
    title = f"{len(s.rows):,} {of}"
    return Section("ranks", title, (*warnings, more), parts=parts)

"""Several processes side by side: the ranks of one job, and what a running job does now."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from memprof.profiler.model import Growth
from memprof.profiler.model.running_job import Present, Writer
from memprof.profiler.views.compare.ranks import Imbalance, RankSummary
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.failure import line_of
from memprof.profiler.views.report.format import format_ns
from memprof.profiler.views.report.section import (
    EVERY,
    NOTHING,
    Note,
    Section,
    Show,
    Table,
    Tone,
    of_rows,
)

_MEMORY = col.alike(col.Bytes, "reserved", "allocated", "most reserved", "most allocated")


def of_ranks(s: RankSummary, show: Show) -> Section:
    highest = max((r.peak for r in s.rows), default=0)
    who = "rank" if s.world_size else "run"
    columns = (
        col.Count(who),
        col.Bytes("peak"),
        col.Share("of the highest", whole=highest, only="page"),
        col.Count("steps"),
        col.Ns("median step"),
        *col.alike(col.Count, "graphs", "calls", "recompiled", "skips"),
        col.Text("device"),
        *col.below(col.Text("host"), col.Text("pid"), col.Text("state", only="page")),
    )
    rows = [
        (
            r.rank,
            r.peak,
            r.peak,
            r.steps,
            r.step_ns,
            r.graphs,
            r.calls,
            r.recompiles,
            r.skips,
            r.device,
            r.host or "-",
            str(r.pid or "-"),
            "" if r.complete else "incomplete",
        )
        for r in s.rows
    ]
    imbalance = (
        col.Words("figure"),
        col.Figure("lowest"),
        col.Count(who),
        *col.alike(col.Figure, "mean", "highest"),
        col.Count(who),
        col.Figure("above the mean"),
    )
    figures = [
        (
            i.name,
            _figure(i, i.lowest, show),
            i.lowest_rank,
            _figure(i, i.mean, show),
            _figure(i, i.highest, show),
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


def _figure(i: Imbalance, value: float, show: Show) -> str:
    return show(round(value)) if i.unit == "bytes" else format_ns(value)


def of_present(found: Sequence[Present], show: Show) -> Iterator[Section]:
    if len(found) > 1:
        yield _side_by_side(found)
        for p in found:
            yield _grows(p.grows, show, f"Memory grows in {_name(p)}")
        return
    for p in found:
        died = p.writer is Writer.DIED
        tone = Tone.ERROR if died else Tone.WARN if p.stalled else Tone.PLAIN
        yield Section("", _name(p), (Note(_state(p), tone),))
        yield _devices(p)
        yield _compiled(p, show)
        yield _grows(p.grows, show, "Memory grows")
        columns = (col.Bytes(""), col.Text(""), col.TEXT)
        yield of_rows("What to change", columns, p.findings, least=EVERY, lines=True)


def _name(p: Present) -> str:
    of = p.process
    rank = f"rank {of.rank} of {of.world_size}" if of.world_size > 1 else ""
    who = f"process {of.pid}" + (f" on {of.host}" if of.host else "") if of.pid else ""
    return " · ".join(text for text in (os.path.basename(p.path), rank, who) if text)


def _state(p: Present) -> str:
    age = "" if p.age_ns is None else f"{format_ns(p.age_ns)} ago"
    if p.writer is Writer.ENDED:
        state = f"ended{', ' * bool(age)}{age}"
    elif p.writer is Writer.DIED:
        state = f"died: nobody writes its file, which has no end; the last is from {age or '?'}"
    elif p.stalled:
        state = f"stalled? nothing new since {age.removesuffix(' ago')}"
    else:
        state = f"running; written {age}" if age else "running"
    if p.writer is Writer.UNKNOWN:
        state += "; whether it still runs cannot be told from here"
    rate = f"{p.rate:.3g} {p.steps}/s" if p.rate is not None else ""
    calls = f"{p.calls:,} calls of compiled code" if p.calls else ""
    return " · ".join(text for text in (state, rate, calls) if text)


def _devices(p: Present) -> Section:
    since = col.Change("since watched")
    columns = (col.Text("device"), *_MEMORY, col.Bytes("of"), since)
    rows = [
        (
            d.device,
            d.reserved,
            d.allocated or None,
            d.most_reserved,
            d.most_allocated or None,
            d.total or None,
            p.since.get(d.device, 0),
        )
        for d in p.devices
    ]
    none = "The file says nothing of devices yet."
    return Section("", "", tables=(Table(columns, rows, least=EVERY, empty=none),))


def _compiled(p: Present, show: Show) -> Section:
    if p.peak is None:
        return NOTHING
    rows = [(n, n, name) for name, n in p.categories]
    title = f"Peak of compiled code on {p.peak_device}: {show(p.peak)}"
    return of_rows(title, (col.BYTES, col.share(p.peak), col.CATEGORY), rows, rest="smaller")


def _grows(found: Sequence[Growth], show: Show, title: str) -> Section:
    rows = [
        (
            f"{show(g.a_step)} per {g.step}, {show(g.nbytes)} by now: "
            + (g.holder or line_of(g.frame) or "unknown"),
        )
        for g in found
    ]
    return of_rows(title, (col.TEXT,), rows, most=3, lines=True, tone=Tone.WARN)


def _side_by_side(found: Sequence[Present]) -> Section:
    columns = (
        col.Count("rank"),
        col.Figure("pid"),
        col.Text("state"),
        col.Ns("age"),
        col.Figure("steps/s"),
        col.Text("device"),
        *_MEMORY,
    )
    rows: list[col.Row] = []
    for p in sorted(found, key=lambda p: (p.process.rank, p.process.pid, p.path)):
        d = p.devices[0] if p.devices else None
        state = "stalled?" if p.stalled else p.writer.value
        rate = f"{p.rate:.3g}" if p.rate is not None else None
        memory: col.Row = ("-", None, None, None, None)
        if d is not None:
            memory = (d.device, d.reserved, d.allocated, d.most_reserved, d.most_allocated)
        pid = str(p.process.pid) if p.process.pid else None
        rows.append((p.process.rank, pid, state, p.age_ns, rate, *memory))
    return Section("", f"{len(rows):,} processes", tables=(Table(columns, rows, least=EVERY),))

"""Whose profile it is, what failed, what to change, and what the figures leave out."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from ...advice import Finding
from ...attribution import View
from ..columns import LINE, MODULE, TEXT, Column, Unit
from ..format import format_bytes, format_ns, format_share
from ..section import Note, Section, Show, Table, Tone, of_rows
from ..summary import Summary

VIEW_TITLES = {
    View.CATEGORY: "category",
    View.MODULE: "module",
    View.NODE: "FX node",
    View.LINE: "source line",
    View.GRAPH: "graph",
}
_SHORT = 3
"""Findings of a short text."""
_EVIDENCE = 3
"""Rows of evidence under a finding of a text; pages and the JSON report have all."""
_REASON = (Column("", Unit.BYTES, adds=True), TEXT)


def module_name(path: str | None) -> str | None:
    """A module's path as people read it."""
    return "(root)" if path == "" else path


def header(s: Summary) -> Section:
    """Versions, machine, rank; what was left out and what ran out of memory."""
    p = s.profile
    m = p.machine
    where = [m.system, m.cpu, f"{m.cores} cores" if m.cores else ""]
    where += [f"{format_bytes(m.memory_bytes)} memory" if m.memory_bytes else "", *m.accelerators]
    calls = f"{s.graphs:,} graphs, {s.calls:,} calls in {format_ns(s.span_ns)}"
    if s.dropped_calls:
        calls += f" ({s.dropped_calls:,} earlier calls are no longer in the log)"
    versions = f"memprof {p.memprof} · torch {p.torch} · Python {p.python}"
    notes = [Note(versions, Tone.STRONG, detail=True)]
    if any(where):
        notes.append(Note(" · ".join(w for w in where if w), detail=True))
    notes.append(Note(calls, detail=True))
    of = p.process
    if of is not None and of.world_size > 1:
        who = f"local rank {of.local_rank}, host {of.host}, process {of.pid}"
        notes.append(Note(f"rank {of.rank} of {of.world_size} ({who})"))
    if p.created_ns:
        created = datetime.fromtimestamp(p.created_ns / 1e9, tz=timezone.utc)
        notes.append(Note(f"taken {created:%Y-%m-%d %H:%M:%S} UTC", detail=True))
    if p.options:
        options = ", ".join(f"{k}={v}" for k, v in sorted(p.options.items()))
        notes.append(Note(f"options: {options}", detail=True))
    if not p.complete:
        said = "incomplete: the process was killed or still runs; this is what it had written"
        notes.append(Note(said, Tone.WARN))
    parts = tuple(part for part in (_left_out(s), _out_of_memory(s)) if part)
    return Section("about", "", tuple(notes), parts=parts, name="versions and machine")


def _left_out(s: Summary) -> Section:
    n = len(s.profile.left_out)
    title = "left out, since the file is damaged or contradicts itself: "
    title += f"{n:,} part{'s' if n > 1 else ''}"
    rows = [(text,) for text in s.profile.left_out]
    said = of_rows(title, (TEXT,), rows, rest="more: report --json", lines=True, tone=Tone.WARN)
    return replace(said, id="left-out")


def _out_of_memory(s: Summary) -> Section:
    times = sum(e.count for e in s.out_of_memory)
    rows = [
        (
            *(e.count, e.what, module_name(e.module), e.frame, e.device, e.live, e.time_ns),
            *(e.source, e.text),
        )
        for e in s.out_of_memory
    ]
    columns = (
        Column("times", Unit.TIMES, adds=True),
        *(Column("what failed"), MODULE, LINE, Column("device")),
        Column("live", Unit.BYTES),
        Column("time", Unit.TIME),
        Column("who says so"),
        Column("error", fold=True),
    )
    title = f"Out of memory: {times:,} time{'s' if times > 1 else ''}"
    said = of_rows(
        title, columns, rows, rest="more: report --json", lines=True, brief=2, tone=Tone.ERROR
    )
    return replace(said, id="out-of-memory")


def advice(s: Summary, show: Show) -> Section:
    """What could be changed, most bytes first."""
    parts = []
    for n, f in enumerate(s.advice, 1):
        name = "further findings" if n > _SHORT else "evidence of findings"
        parts.append(replace(_finding(n, f, show), detail=n > _SHORT, name=name))
    none = Note("Nothing was found that would save 2 % of the peak or of a pool.")
    return Section("advice", "What to change", () if parts else (none,), parts=tuple(parts))


def _finding(number: int, f: Finding, show: Show) -> Section:
    columns = (
        Column("", Unit.BYTES, adds=True),
        Column("what"),
        Column("times", Unit.TIMES),
        *(Column("graph", Unit.CODE), Column("FX node", Unit.CODE), MODULE, LINE),
    )
    rows = [
        (e.nbytes, e.text, e.count, e.graph, e.node, module_name(e.module), e.frame)
        for e in f.evidence
    ]
    caption = f"Evidence ({len(rows):,})"
    table = Table(
        columns, rows, caption=caption, most=_EVIDENCE, lines=True, folded=True, detail=True
    )
    title = f"{number}. up to {show(f.nbytes)} {f.whose}: {f.title}"
    return Section("", title, (Note(f.change),), (table,))


def not_counted(s: Summary, show: Show) -> Section:
    """What is not in the figures, and why."""
    c = s.coverage
    notes, special = [], []
    if c.allocated:
        notes.append(
            f"Of {show(c.allocated)} that compiled code allocates in one call of each program, "
            f"{format_share(c.to_node, c.allocated)} have an FX node and "
            f"{format_share(c.to_source, c.allocated)} a source line or module."
        )
    if s.kept_bytes:
        special.append(
            f"{show(s.kept_bytes)} that libraries allocated in observed calls and kept "
            "(workspaces, packed weights) are not counted."
        )
    if s.without_scratch:
        special.append(
            f"Scratch memory inside kernels of {s.without_scratch:,} of "
            f"{sum(r.programs for r in s.table):,} programs is not counted: another profiler ran "
            "when they were observed."
        )
    notes.append(
        "Tensors that eager code makes or keeps outside compiled calls are never seen: an eager "
        "loss, gradients between a backward and an eager optimizer, outputs that the program "
        "keeps. What is live between calls is a lower bound."
    )
    notes.append(
        "A program is observed once and stands for all later calls with the same sizes, replays "
        "included: their memory is reconstructed, not measured again."
    )
    missing = sorted(c.missing.items(), key=lambda m: -m[1])
    tables = [
        Table(
            _REASON,
            [(r.nbytes, r.key) for r in b.remainder],
            caption=f"unattributed at the peak by {VIEW_TITLES[view]}: {show(b.unattributed)} "
            f"({format_share(b.unattributed, b.total)})",
            lines=True,
            rest="more reasons",
            only="text",
            detail=not b.unattributed,
        )
        for view, b in s.views.items()
    ]
    if missing:
        caption = "of what is allocated, without an FX node or a source line:"
        rows = [(n, reason) for reason, n in missing]
        tables.append(
            Table(_REASON, rows, caption=caption, lines=True, rest="more reasons", detail=True)
        )
    # Whoever follows the allocator counts these, too.
    counted = any(a.device == s.device for a in s.profile.accounts)
    said = (
        *(Note(n, detail=True) for n in notes),
        *(Note(n, detail=counted) for n in special),
    )
    name = "what is not counted"
    return Section("notes", name.capitalize(), said, tuple(tables), name=name)

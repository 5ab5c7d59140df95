"""Sections on the run of a profile, failures, growth, findings, and what the figures leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from memprof.profiler.live.attribution import View
from memprof.profiler.model import Category, Growth, GrowthSource, LedgerKind
from memprof.profiler.views.advice import Finding
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.failure import line_of
from memprof.profiler.views.report.format import format_bytes, format_ns, format_share
from memprof.profiler.views.report.section import (
    EVERY,
    Note,
    Section,
    Show,
    Table,
    Tone,
    of_rows,
)
from memprof.profiler.views.report.summary import Summary

VIEWS: dict[View, tuple[col.Column, ...]] = {
    View.CATEGORY: (col.CATEGORY,),
    View.MODULE: (col.MODULE,),
    View.NODE: (col.Code("FX node"), *col.alike(col.Code, "graph", "operator or name", below=True)),
    View.LINE: (col.Path("source line"), col.Code("code", below=True)),
    View.GRAPH: (col.Code("graph"),),
}
"""Columns that name the parts of each view, and those that stand below the name."""
MEANING = {
    Category.PARAMETER: "parameters and buffers of modules",
    Category.OPTIMIZER_STATE: "what an optimizer keeps from step to step",
    Category.GRADIENT: "gradients of parameters",
    Category.ACTIVATION: "what a backward needs of its forward",
    Category.TEMPORARY: "made and let go of inside one call",
    Category.INPUT: "what the program hands in",
    Category.OUTPUT: "what the program gets back",
    Category.AUTOGRAD_DETAIL: "gradients of outputs, random-number state",
    Category.CONSTANT: "baked into the code",
    Category.PERSISTENT_STATE: "buffers that code writes to: statistics, caches",
    Category.CHECKPOINTED_INPUT: "inputs that a checkpoint keeps, to compute the rest again",
    Category.UNKNOWN: "nobody knows what for",
}
"""Meaning of each category of compiled code, in a few words."""

_WORDS = (
    ("0/0 forward", "graph 0 of the function that Dynamo compiled first (0), compiled first (/0)"),
    ("call", "one run of such a graph; calls are numbered in the order in which they returned"),
    ("program", "what a call allocates and frees, one for each combination of sizes"),
    ("observed", "watched allocation by allocation, once a program; later calls are not slowed"),
    ("instant", "a place in a program, between two of its allocations and frees"),
    ("storage", "memory of one tensor and of all views of it, counted once"),
    ("live", "allocated and not freed yet"),
    ("reserved", "what torch's allocator has from the device; nvidia-smi adds CUDA's own"),
    ("attributed", "known whose it is; what is not known is always a row of its own"),
    ("tangent", "the gradient of an output, with which a compiled backward begins"),
    ("pool", "memory that CUDA graphs have for themselves"),
    ("recorded again", "a CUDA graph of the same sizes was there, and did not fit"),
)
_SHORT = 3
"""Most findings of a short text."""
_MOST_GROWTH = 5
"""Most entries on growth in a report; ``--section leaks`` has all."""
_REASON = (col.Bytes("", adds=True), col.TEXT)


def words() -> Section:
    table = Table((col.Text(""), col.Text("", fold=True)), _WORDS, lines=True, least=EVERY)
    return Section("words", "Words", tables=(table,), detail=True, name="words")


def fell_back(s: Summary) -> Section:
    """That memprof itself failed in the run, so that figures are of less than all."""
    times = sum(reason.count for reason in s.ledger.fallbacks)
    text = f"memprof fell back to plain Inductor, times: {times:,} (why: --section ledger)"
    return Section("fell-back", "", (Note(text, tone=Tone.ERROR),), name="fallbacks")


def module_name(path: str | None) -> str | None:
    return "(root)" if path == "" else path


def header(s: Summary) -> Section:
    p, m, of = s.profile, s.profile.machine, s.profile.process
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
        notes.append(
            Note(
                "incomplete: the process was killed or still runs; this is what it had written",
                Tone.WARN,
            )
        )
    if failed := s.ledger.counts[LedgerKind.OUT_OF_MEMORY.value]:
        text = f"a device ran out of memory, times: {failed:,} (which request: --section ledger)"
        notes.append(Note(text, Tone.ERROR))
    return Section("about", "", tuple(notes), parts=(_left_out(s),), name="versions and machine")


def _left_out(s: Summary) -> Section:
    n = len(s.profile.left_out)
    title = f"left out, since the file is damaged: {n:,} part{'s' if n > 1 else ''}"
    rows = [(text,) for text in s.profile.left_out]
    section = of_rows(
        title, (col.TEXT,), rows, rest="more: report --json", lines=True, tone=Tone.WARN
    )
    return replace(section, id="left-out")


def of_growth(found: Sequence[Growth], show: Show, most: int = _MOST_GROWTH) -> Section:
    """Section on memory that is held across steps and grows: at most ``most`` entries in the order
    of ``found``; empty if nothing grows."""
    parts = tuple(
        replace(_grows(n, g, show), detail=n > _SHORT) for n, g in enumerate(found[:most], 1)
    )
    more = f"{len(found) - most:,} more: memprof report FILE --section leaks"
    notes = (Note(more, Tone.DIM),) if len(found) > most else ()
    total = sum(g.nbytes for g in found)
    title = f"Memory grows: {show(total)} are held that every step adds to"
    return Section("growth", title if found else "", notes, parts=parts, tone=Tone.WARN)


def _grows(number: int, g: Growth, show: Show) -> Section:
    who = g.holder or (f"what {line_of(g.frame)} makes" if g.frame is not None else "unknown")
    title = f"{number}. {show(g.a_step)} per {g.step}, {show(g.nbytes)} by now: {who}"
    notes = []
    if g.frame is not None:
        code = f": {g.frame.code}" if g.frame.code else ""
        notes.append(Note(f"made at {line_of(g.frame)}{code}"))
    step = "snapshot" if g.source is GrowthSource.TRACKER else g.step
    notes.append(Note(f"on {g.device}, since {step} {g.since:,} of {g.steps:,}; {_SEEN[g.source]}"))
    columns = (
        col.Bytes("", adds=True),
        col.Count("blocks", adds=True),
        *col.alike(col.Code, "", ""),
        col.Frame(""),
    )
    rows = [(p.nbytes, p.count, p.nodes or p.detail, p.modules, p.frame) for p in g.parts]
    held = "What is held"
    return of_rows(
        title, columns, rows, *notes, caption=held, most=4, lines=True, folded=True, detail=True
    )


_SEEN = {
    GrowthSource.ALLOCATOR: "every block that is still there was counted",
    GrowthSource.TRACKER: "seen in the tracker's snapshots; eager=True names lines",
}


def advice(found: Sequence[Finding], show: Show) -> Section:
    parts = tuple(_finding(n, f, show) for n, f in enumerate(found, 1))
    none = Note("Nothing was found that would save 2 % of the peak or of a pool.")
    return Section("advice", "What to change", () if parts else (none,), parts=parts)


def _finding(number: int, f: Finding, show: Show) -> Section:
    columns = (
        col.Bytes("", adds=True),
        col.Text("what"),
        col.Times("times"),
        *col.alike(col.Code, "graph", "FX node"),
        col.MODULE,
        col.LINE,
    )
    rows = [
        (e.nbytes, e.text, e.count, e.graph, e.node, module_name(e.module), e.frame)
        for e in f.evidence
    ]
    caption = f"Evidence ({len(rows):,})"
    # A page and the JSON report have all of it.
    table = Table(columns, rows, caption=caption, most=3, lines=True, folded=True, detail=True)
    title = f"{number}. up to {show(f.nbytes)} {f.whose}: {f.title}"
    further = number > _SHORT
    name = "further findings" if further else "evidence of findings"
    ways = Table(_REASON, [(r.nbytes, r.change) for r in f.ways], lines=True, least=EVERY)
    return Section("", title, (Note(f.change),), (ways, table), detail=further, name=name)


def not_counted(s: Summary, show: Show) -> Section:
    c = s.coverage
    # Whoever follows the allocator counts these, too.
    counted = any(a.device == s.device for a in s.profile.accounts)
    notes, special = [], []
    if c.allocated:
        notes.append(
            "Of the bytes that compiled code allocates in one call of each program, "
            f"{format_share(c.to_node, c.allocated)} have an FX node and "
            f"{format_share(c.to_source, c.allocated)} a source line or module."
        )
    notes += [
        "Tensors that eager code makes or keeps outside compiled calls are never seen: an eager "
        "loss, gradients between a backward and an eager optimizer, outputs that the program "
        "keeps. What is live between calls is a lower bound.",
        "A program is observed once and stands for all later calls with the same sizes, replays "
        "included: their memory is reconstructed, not measured again.",
    ]
    if s.kept_bytes:
        special.append(
            f"Up to {show(s.kept_bytes)} that libraries allocated in an observed call and kept "
            "(workspaces, packed weights) are not counted."
        )
    if s.without_scratch:
        special.append(
            f"Scratch memory inside kernels of {s.without_scratch:,} of "
            f"{sum(r.programs for r in s.table):,} programs is not counted: another profiler ran "
            "when they were observed."
        )

    reasons = partial(Table, lines=True, rest="more reasons")
    tables = []
    for view, b in s.views.items():
        left = f"{show(b.unattributed)} ({format_share(b.unattributed, b.total)})"
        caption = f"unattributed at the peak by {VIEWS[view][0].title}: {left}"
        rows = [(r.nbytes, r.key) for r in b.remainder]
        detail = not b.unattributed
        tables.append(reasons(_REASON, rows, caption=caption, detail=detail))
    if c.missing:
        caption = "of what is allocated, without an FX node or a source line:"
        rows = [(n, reason) for reason, n in c.missing.items()]
        of_all = replace(col.share(c.allocated), title="")
        tables.append(reasons((of_all, col.TEXT), rows, caption=caption, detail=True))
    described = (
        *(Note(n, detail=True) for n in notes),
        *(Note(n, detail=counted) for n in special),
    )
    name = "what is not counted"
    return Section("notes", name.capitalize(), described, tuple(tables), name=name)

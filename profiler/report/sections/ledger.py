"""Everything that memprof did and declined, and why."""

from __future__ import annotations

from ...model import GraphRecord, LedgerEntry, Profile
from ...trees import pool_growth, short_reason
from ..columns import Column, Unit
from ..section import EVERY, Note, Section, Show, Table, Tone
from ..summary import Summary

_NAMED = 3
"""Graphs that a reason names."""


def of_ledger(profile: Profile, show: Show, latest: int = EVERY) -> Section:
    """One row an entry in order of time; of many the ``latest``."""
    graphs = {g.id: g for g in profile.graphs}
    entries = profile.ledger[-latest:]
    rows = []
    for e in entries:
        graph = graphs[e.graph] if e.graph is not None else None
        label = graph.label if graph else e.tree.function if e.tree else "-"
        rows.append((e.time_ns, e.kind.value, label, e.count, _why(e, graph, show)))
    columns = (
        Column("time (UTC)", Unit.TIME),
        Column("what", Unit.CATEGORY),
        Column("graph", Unit.CODE),
        Column("count", Unit.COUNT),
        Column("why", fold=True),
    )
    empty = "The ledger is empty: nothing was compiled."
    table = Table(columns, rows, least=EVERY, empty=empty, filtered=1)
    left = len(profile.ledger) - len(entries)
    said = f"{left:,} earlier entries are left out here; memprof ledger prints them."
    return Section("ledger", "Ledger", (Note(said),) if left else (), (table,))


def _why(entry: LedgerEntry, graph: GraphRecord | None, show: Show) -> str:
    said = [short_reason(entry, graph)]
    if entry.tree is not None and entry.tree.key:
        said.append(f"sizes {', '.join(map(str, entry.tree.key))}")
    if grown := pool_growth(entry):
        said.append(f"the pool grew by {show(grown)}")
    return "; ".join(said)


def ledger_counts(s: Summary) -> Section:
    """How often what was done, and the reasons of everything that did not go to plan."""
    c = s.ledger.counts
    done = (
        f"compiled {c['compiled']:,}, found in a cache {c['cache_hit']:,}, compiled again past a "
        f"cache {c['recompiled']:,}, observed {c['observed']:,}, reset {c['reset']:,}"
    )
    columns = (Column("times", Unit.TIMES, adds=True), Column("why"), Column("graphs"))
    parts = []
    for title, reasons, tone in (
        ("not observed", s.ledger.not_observed, Tone.WARN),
        ("compiled again past a cache", s.ledger.recompiled, Tone.PLAIN),
        ("fallbacks to plain Inductor", s.ledger.fallbacks, Tone.ERROR),
    ):
        rows = [
            (r.count, r.reason, ", ".join(r.graphs[:_NAMED]) + ", …" * (len(r.graphs) > _NAMED))
            for r in reasons
        ]
        table = Table(columns, rows, rest="more reasons: memprof ledger FILE", lines=True)
        if rows:
            count = sum(r.count for r in reasons)
            plain = tone is Tone.PLAIN
            told = f"{title}: {count:,}"
            parts.append(Section("", told, tables=(table,), tone=tone, detail=plain))
    notes = [Note(done, detail=True)]
    if not s.ledger.fallbacks:
        notes.append(Note("no fallbacks to plain Inductor", detail=True))
    return Section("", "Ledger", tuple(notes), parts=tuple(parts), name="ledger", spare=3)

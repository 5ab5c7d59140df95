"""Sections on what memprof did and declined, and why: the ledger, and the recordings of trees."""

from __future__ import annotations

from dataclasses import replace

from memprof.profiler.live.trees import REST, pool_growth, pool_rest, short_reason
from memprof.profiler.model import GraphRecord, LedgerEntry, Profile
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.section import EVERY, Note, Section, Show, Table, Tone, of_rows
from memprof.profiler.views.report.summary import Summary

_NAMED = 3
"""Graphs that a reason names, and reasons that stand in for trees where there are none."""
_MORE_REASONS = "more reasons: memprof report FILE --section ledger"


def of_ledger(profile: Profile, show: Show, latest: int = EVERY) -> Section:
    """One row an entry in order of time; of many the ``latest``."""
    graphs = {g.id: g for g in profile.graphs}
    rows = []
    for e in profile.ledger[-latest:]:
        graph = graphs[e.graph] if e.graph is not None else None
        label = graph.label if graph else e.tree.function if e.tree else "-"
        rows.append((e.time_ns, e.kind.value, label, e.count, _why(e, graph, show)))
    columns = (
        col.Time("time (UTC)"),
        col.Words("what"),
        col.Code("graph"),
        col.Count("count"),
        col.Text("why", fold=True),
    )
    empty = "The ledger is empty: nothing was compiled."
    table = Table(columns, rows, least=EVERY, empty=empty)
    left = len(profile.ledger) - len(rows)
    note = f"{left:,} earlier entries are left out here; --section ledger prints them."
    return Section("ledger", "Ledger", (Note(note),) if left else (), (table,))


def _why(entry: LedgerEntry, graph: GraphRecord | None, show: Show) -> str:
    parts = [short_reason(entry, graph)]
    tree = entry.tree
    if tree is not None and tree.node is not None:
        parts.append(f"#{tree.node} {'first' if tree.parent is None else f'after #{tree.parent}'}")
    if tree is not None and tree.key:
        parts.append(f"sizes {', '.join(map(str, tree.key))}")
    if grown := pool_growth(entry):
        parts.append(f"the pool grew by {show(grown)}")
    return "; ".join(parts)


def ledger_counts(s: Summary) -> Section:
    c = s.ledger.counts
    done = (
        f"compiled {c['compiled']:,}, found in a cache {c['cache_hit']:,}, compiled again past a "
        f"cache {c['recompiled']:,}, observed {c['observed']:,}, reset {c['reset']:,}"
    )
    columns = (col.Times("times", adds=True), col.Text("why"), col.Text("graphs"))
    parts = []
    for title, reasons, tone in (
        ("not observed", s.ledger.not_observed, Tone.WARN),
        ("compiled again past a cache", s.ledger.recompiled, Tone.PLAIN),
        ("without CUDA graph", s.ledger.not_graphed, Tone.PLAIN),
        ("fallbacks to plain Inductor", s.ledger.fallbacks, Tone.ERROR),
    ):
        rows = [
            (r.count, r.reason, ", ".join(r.graphs[:_NAMED]) + ", …" * (len(r.graphs) > _NAMED))
            for r in reasons
        ]
        heading = f"{title}: {sum(r.count for r in reasons):,}"
        part = of_rows(heading, columns, rows, rest=_MORE_REASONS, lines=True, tone=tone)
        parts.append(replace(part, detail=tone is Tone.PLAIN))
    fallbacks = () if s.ledger.fallbacks else ("no fallbacks to plain Inductor",)
    notes = tuple(Note(text, detail=True) for text in (done, *fallbacks))
    return Section("", "Ledger", notes, parts=tuple(parts), name="ledger", spare=3)


def trees(s: Summary, show: Show) -> Section:
    notes = []
    if s.pools:
        pools = ", ".join(f"{d} {show(n)}" for d, n in sorted(s.pools.items()))
        notes.append(Note(f"Largest pools: {pools}."))
        notes.append(Note(_COST))
    tables = (_functions(s), _reasons(s))
    title = "Graph trees"
    shown = tuple(t for t in tables if t.rows)
    return Section("trees", title, tuple(notes), shown, detail=True, name=title.lower())


_COST = (
    "A recording costs by how much it made its pool grow; one that fits into what others left "
    "costs nothing."
)


def _functions(s: Summary) -> Table:
    columns = (
        col.Code("function"),
        col.Text("device", below=True),
        col.Count("sizes"),
        *col.alike(col.Count, "warm-ups", "recorded", adds=True),
        col.Count("again", help="Recorded where others exist and none fitted", adds=True),
        *col.alike(col.Count, "replays", "skips", adds=True),
        col.Bytes("pool", adds=True),
    )
    rows = [
        (
            f.function,
            f.device,
            f.keys,
            f.warm_ups,
            f.recordings,
            f.rerecordings,
            f.replays,
            f.skips,
            f.marginal_bytes,
        )
        for f in s.trees
    ]
    rest = pool_rest(s.trees, s.pools)
    foot = tuple(
        (name, device, *("",) * 6, nbytes)
        for device, largest in s.pools.items()
        for name, nbytes in ((REST, rest[device]), ("largest pool", largest))
        if nbytes or name != REST
    )
    return Table(columns, rows, foot, caption="Functions")


def _reasons(s: Summary) -> Table:
    columns = (
        col.Count("times", adds=True),
        col.Words("what"),
        col.Text("why", fold=True),
        col.Code("function"),
    )
    found = [(r.count, r.kind.value, r.reason, f.function) for f in s.trees for r in f.reasons]
    found.sort(key=lambda row: -row[0])
    caption = "What did not go the straight way"
    return Table(columns, found, caption=caption, rest=_MORE_REASONS, lines=True)

"""Trees of CUDA graphs and arenas of the CPU: what was recorded, at what cost, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from ...model import LedgerKind, Profile
from ...trees import REST, RecordedNode, pool_rest
from ..columns import Column, Unit, alike
from ..section import Foot, Note, Section, Show, Table
from ..summary import Summary

_REASONS = 3
"""Reasons that stand in for trees where there are none."""


def trees(s: Summary, show: Show) -> Section:
    """The recordings, the functions that they are of, and what did not go the straight way."""
    notes = []
    if s.pools:
        pools = ", ".join(f"{d} {show(n)}" for d, n in sorted(s.pools.items()))
        notes.append(Note(f"Largest pools: {pools}."))
        notes.append(Note(_WHAT_POOLS_ARE[bool(s.recordings)]))
    if not s.recordings:
        notes.append(Note(_why_none(s), only="page"))
    tables = (_recordings(s.recordings), _functions(s), _reasons(s))
    title = "Graph trees and arenas"
    shown = tuple(t for t in tables if t.rows)
    return Section("trees", title, tuple(notes), shown, detail=True, name=title.lower())


_WHAT_POOLS_ARE = {
    True: "A recording costs by how much it made its pool grow; one that fits into what others "
    "left costs nothing.",
    False: "Functions have the scratch memory that their arenas planned; outputs, activations for "
    "the backward among them, have blocks of their own in the pool.",
}


def _recordings(nodes: list[RecordedNode]) -> Table:
    ordered = list(_in_tree_order(nodes))
    columns = (
        Column("recording", Unit.CODE),
        *alike(Unit.TEXT, "device", "sizes", "what happened", below=True),
        Column("replays", Unit.COUNT, adds=True),
        Column("pool", Unit.BYTES, "By how much recording it made its pool grow", adds=True),
        Column("recording took", Unit.NS, adds=True),
    )
    rows = [
        (
            f"{n.function} #{n.node}",
            n.device,
            f"sizes {', '.join(map(str, n.key))}" if n.key else "",
            _fate(n),
            n.replays,
            n.marginal_bytes,
            n.record_ns or None,
        )
        for n, _ in ordered
    ]
    caption = "Recorded graphs, each below the one that runs before it"
    return Table(columns, rows, caption=caption, depth=[d for _, d in ordered], only="page")


def _fate(n: RecordedNode) -> str:
    again = f"recorded again: {n.reason}" if n.rerecorded else ""
    return "; ".join(filter(None, [again, f"dropped: {n.evicted}" if n.evicted else ""]))


def _in_tree_order(nodes: list[RecordedNode]) -> Iterator[tuple[RecordedNode, int]]:
    """Each recording after the one that runs before it, with its depth; once, whatever a file
    says of parents."""
    known = {(n.device, n.node) for n in nodes}
    below: dict[tuple[str, int] | None, list[RecordedNode]] = {}
    for n in nodes:
        parent = None if n.parent is None else (n.device, n.parent)
        below.setdefault(parent if parent in known and n.parent != n.node else None, []).append(n)
    done: set[int] = set()
    # Those in a circle of parents, which no valid tree has, come last.
    for root in (*below.get(None, []), *nodes):
        stack = [(root, 0)]
        while stack:
            node, depth = stack.pop()
            if id(node) in done:
                continue
            done.add(id(node))
            yield node, depth
            stack += [(n, depth + 1) for n in reversed(below.get((node.device, node.node), []))]


def _functions(s: Summary) -> Table:
    columns = (
        Column("function", Unit.CODE),
        Column("device", below=True),
        Column("sizes", Unit.COUNT),
        *alike(Unit.COUNT, "warm-ups", "recorded", adds=True),
        Column("again", Unit.COUNT, "Recorded where others exist and none fitted", adds=True),
        *alike(Unit.COUNT, "replays", "skips", adds=True),
        Column("pool", Unit.BYTES, adds=True),
    )
    rows = [
        (
            *(f.function, "CPU arena" if f.device == "cpu" else f.device, f.keys, f.warm_ups),
            *(f.recordings, f.rerecordings, f.replays, f.skips, f.marginal_bytes),
        )
        for f in s.trees
    ]
    blank = ("",) * 6
    foot = tuple(
        Foot((name, "CPU arena" if device == "cpu" else device, *blank, nbytes))
        for device, rest in pool_rest(s.trees, s.pools).items()
        for name, nbytes in ((REST, rest), ("largest pool", s.pools[device]))
    )
    return Table(columns, rows, foot, caption="Functions")


def _reasons(s: Summary) -> Table:
    columns = (
        Column("times", Unit.COUNT, adds=True),
        Column("what", Unit.CATEGORY),
        Column("why", fold=True),
        Column("function", Unit.CODE),
    )
    found = [(r.count, r.kind.value, r.reason, f.function) for f in s.trees for r in f.reasons]
    found.sort(key=lambda row: -row[0])
    return Table(
        columns,
        found,
        caption="What did not go the straight way",
        rest="more reasons: memprof ledger FILE",
        lines=True,
    )


def _why_none(s: Summary) -> str:
    if set(s.device_peaks) <= {"cpu"}:
        said = "CUDA graphs run on CUDA devices; in this profile everything ran on the CPU, where "
        said += "graphs may get an arena instead."
    else:
        said = "No CUDA graph was recorded."
    why = s.ledger.not_graphed[:_REASONS]
    told = "; ".join(f"{r.reason} ({r.count:,} x)" for r in why)
    return f"{said} Reasons: {told}." if told else said


def why_no_addresses(profile: Profile) -> dict[str, str]:
    """Why graphs have no fixed addresses, as far as the ledger knows: by label, "" for any."""
    labels = {g.id: g.label for g in profile.graphs}
    found: dict[str, dict[str, None]] = {"": {}}
    for e in profile.ledger:
        if e.kind in (LedgerKind.NOT_GRAPHED, LedgerKind.SKIP, LedgerKind.TREE_FAILURE):
            label = labels[e.graph] if e.graph is not None else e.tree.function if e.tree else ""
            for key in ("", label):
                found.setdefault(key, {})[e.reason] = None
    return {key: "; ".join([*reasons][:_REASONS]) for key, reasons in found.items() if reasons}

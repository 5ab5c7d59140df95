"""Pools of CUDA graphs: what each capture added, who shares what, and what stays."""

from __future__ import annotations

from ...graph_pools import label, left_behind, numbers
from ...model import CapturedGraph, CaptureRow, GraphPool
from ..columns import ASKED_FOR, BLOCKS, BYTES, Cell, Column, Unit, share
from ..section import Foot, Note, Section, Show, Table, Tone, of_rows

_NOWHERE = "(no Python was running)"


def of_graph_pool(pool: GraphPool, show: Show) -> Section:
    """One pool, and the graphs that were captured into it."""
    outside = (_rows(pool.outside),) if pool.outside else ()
    parts = (
        *(_shares(pool), _left(pool, show), _at_peak(pool, show)),
        Section("", "What is in the pool that no capture asked for", tables=outside),
    )
    title = f"CUDA graphs in pool {pool.name} on {pool.device}"
    captures = (_captures(pool),) if pool.graphs else ()
    return Section(
        "", title, tuple(_about(pool, show)), captures, tuple(p for p in parts if p.tables)
    )


def _about(pool: GraphPool, show: Show) -> list[Note]:
    notes = [Note(f"Reserved: {show(pool.reserved)} ({pool.reserved:,} B)")]
    if not pool.graphs:
        notes.append(Note("nothing was captured into it"))
        return notes
    if pool.gone:
        left = f"{show(pool.at_end)} of it are left"
        notes.append(
            Note(
                f"as it was after the last capture: by the end all its graphs were deleted, {left}"
            )
        )
    alone = sum(s.nbytes for s in pool.shares if len(s.graphs) == 1)
    notes.append(
        Note(
            f"{show(pool.shared)} are used by more than one graph, {show(alone)} by one alone; "
            f"a graph costs by how much smaller the pool were without it"
        )
    )
    return notes + [Note(note, Tone.WARN) for note in pool.notes]


def _captures(pool: GraphPool) -> Table:
    columns = (
        Column("pool grew", Unit.BYTES, "By how much, during the capture", adds=True),
        Column("costs", Unit.BYTES, "By how much smaller the pool were without this graph"),
        Column("at once", Unit.BYTES, "The most that it had asked for at one instant"),
        Column("alone", Unit.BYTES, "Bytes of the pool that no other graph uses", adds=True),
        Column("stays", Unit.BYTES, "Bytes that no later capture can have", adds=True),
        Column("graph", Unit.CODE),
        Column("captured by", below=True, only="page"),
        Column("at", Unit.FRAME, below=True),
    )
    rows: list[tuple[Cell, ...]] = [
        (g.grew, g.cost, g.peak, g.alone, g.stays, _state(g), g.maker, g.frame) for g in pool.graphs
    ]
    none: tuple[Cell, ...] = (None, None, None, None)
    foot = (
        Foot((pool.grew_outside, *none, "outside of captures", "", None)),
        Foot((pool.reserved, *none, "total reserved", "", None)),
    )
    return Table(columns, rows, foot)


def _state(g: CapturedGraph) -> str:
    if g.failed:
        return f"{label(g)} (failed: {g.failed})"
    return f"{label(g)} (deleted)" if g.deleted else label(g)


def _shares(pool: GraphPool) -> Section:
    every = [g.number for g in pool.graphs]
    rows = [(s.nbytes, s.nbytes, len(s.graphs), numbers(s.graphs, every)) for s in pool.shares]
    graphs = Column("graphs", Unit.COUNT)
    columns = (BYTES, share(pool.reserved), graphs, Column("which", fold=True))
    others = (
        (pool.other_shares, "further combinations of graphs"),
        (pool.live_outside, "in use, asked for outside of captures"),
        (pool.unused, "in use by nobody"),
        (pool.reserved, "total reserved"),
    )
    foot = tuple(Foot((n, n, None, what)) for n, what in others if n or what == others[-1][1])
    return of_rows("Who uses which bytes", columns, rows, foot=foot, rest="more")


def _left(pool: GraphPool, show: Show) -> Section:
    found = left_behind(pool)
    columns = (BYTES, Column("captures", Unit.COUNT), BLOCKS, Column("what"), *ASKED_FOR)
    rows = [
        (r.nbytes, len(x.graphs), r.count, r.fate.label, r.frame or _NOWHERE, r.modules, r.nodes)
        for x in found
        for r in (x.row,)
    ]
    leaks = sum(x.row.nbytes for x in found if x.leaks)
    said = f"{show(leaks)} stay from capture to capture, and nobody in Python holds them"
    notes = (Note(said, Tone.WARN),) if leaks else ()
    return of_rows("What captures left in the pool", columns, rows, *notes)


def _at_peak(pool: GraphPool, show: Show) -> Section:
    graph = max(pool.graphs, key=lambda g: g.peak, default=None)
    if graph is None or not graph.at_peak:
        return Section("", "")
    title = f"What graph {label(graph)} had asked for at its peak, {show(graph.peak)}"
    return Section("", title, tables=(_rows(graph.at_peak, graph.rounding),))


def _rows(found: list[CaptureRow], rounding: int = 0) -> Table:
    rows = [
        (r.nbytes, r.count, r.fate.label, r.frame or _NOWHERE, r.modules, r.nodes) for r in found
    ]
    foot = (Foot((rounding, None, "rounding", None, None, None)),) if rounding else ()
    return Table((BYTES, BLOCKS, Column("what"), *ASKED_FOR), rows, foot)

"""Reports for the terminal. What they say is in ``summary.py``; here is how it looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone

from rich.table import Table
from rich.text import Text

from ..attribution import Breakdown, ModuleNode, Share, View
from ..model import GraphRecord, LedgerEntry, Profile
from ..trees import pool_growth, short_reason
from .format import format_bytes, format_ns, format_share
from .page import PLAIN, Page, Style
from .parts_text import (
    render_advice,
    render_dataflow,
    render_left_out,
    render_out_of_memory,
    render_process,
)
from .summary import Reason, Summary

__all__ = ["render_ledger", "render_text"]


_DAY_NS = 86_400_000_000_000
_VIEW_TITLES = {
    View.CATEGORY: "by category",
    View.MODULE: "by module",
    View.NODE: "by FX node",
    View.LINE: "by source line",
    View.GRAPH: "by graph",
}


def render_text(summary: Summary, style: Style = PLAIN) -> str:
    """A report as text, ending in a newline."""
    page = Page(style)
    _header(page, summary)
    render_out_of_memory(page, summary)
    if summary.peak is not None:
        _category(page, summary.views[View.CATEGORY])
        _modules(page, summary.views[View.MODULE], summary.modules)
        _nodes(page, summary)
        _lines(page, summary.views[View.LINE])
        _saved(page, summary)
    _graphs(page, summary)
    _trees(page, summary)
    _ledger(page, summary)
    render_dataflow(page, summary)
    _remainder(page, summary)
    render_advice(page, summary)
    return page.text()


def render_ledger(profile: Profile, style: Style = PLAIN) -> str:
    """The ledger of a profile as text, one row an entry whatever ``style.top``, times in UTC; with
    dates if it is of more than one day."""
    page = Page(style)
    if not profile.ledger:
        page.line("The ledger is empty: nothing was compiled.")
        return page.text()
    graphs = {g.id: g for g in profile.graphs}
    days = {e.time_ns // _DAY_NS for e in profile.ledger}
    stamp = "%H:%M:%S.%f" if len(days) == 1 else "%Y-%m-%d %H:%M:%S.%f"
    table = page.table("time (UTC)", "what", "graph", ">count", "why", fold=True)
    for e in profile.ledger:
        graph = graphs[e.graph] if e.graph is not None else None
        time = datetime.fromtimestamp(e.time_ns / 1e9, tz=timezone.utc)
        table.add_row(
            time.strftime(stamp)[:-3],
            e.kind.value.replace("_", " "),
            Text(graph.label if graph else e.tree.function if e.tree else "-"),
            f"{e.count:,}",
            Text(_why(e, graph)),
        )
    page.show(table)
    return page.text()


def _why(entry: LedgerEntry, graph: GraphRecord | None) -> str:
    said = [short_reason(entry, graph)]
    if entry.tree is not None and entry.tree.key:
        said.append(f"sizes {', '.join(map(str, entry.tree.key))}")
    if grown := pool_growth(entry):
        said.append(f"the pool grew by {format_bytes(grown)}")
    return "; ".join(said)


def _header(page: Page, s: Summary) -> None:
    m = s.machine
    page.line(f"memprof {s.memprof} · torch {s.torch} · Python {s.python}", style="bold")
    where = [m.system, m.cpu, f"{m.cores} cores" if m.cores else ""]
    where += [f"{format_bytes(m.memory_bytes)} memory" if m.memory_bytes else ""]
    where += m.accelerators
    if any(where):
        page.line(" · ".join(w for w in where if w))
    calls = f"{s.graphs:,} graphs, {s.calls:,} calls in {format_ns(s.span_ns)}"
    if s.dropped_calls:
        calls += f" ({s.dropped_calls:,} earlier calls are no longer in the log)"
    page.line(calls)
    render_process(page, s)
    render_left_out(page, s)
    if s.options:
        page.line("options: " + ", ".join(f"{k}={v}" for k, v in sorted(s.options.items())))
    page.line()
    if s.peak is None:
        page.line("No call of a compiled graph was recorded, so there is no peak.")
        return
    p = s.peak
    page.line(
        f"Peak of known live memory on {s.device}: {format_bytes(p.nbytes)} ({p.nbytes:,} B)",
        style="bold",
    )
    page.line(
        f"  in call {p.call + 1:,} of {s.calls:,}, {p.graph}, {format_ns(p.after_ns)} after the "
        "first call began"
    )
    if p.line:
        at = f"  after line {p.line} of the generated code"
        page.line(_crop(at + (f": {p.statement}" if p.statement else ""), page.width))
    elif p.instant == 0:
        page.line("  at the entry of the call")
    if p.node:
        source = f", {page.location(p.frame)}" if p.frame else ""
        page.line(f"  for FX node {p.node}{source}")
    others = {d: n for d, n in s.device_peaks.items() if d != s.device}
    if others:
        page.line(
            "  other devices: " + ", ".join(f"{d} {format_bytes(n)}" for d, n in others.items())
        )
    if s.unobserved_calls:
        page.line(
            f"  {s.unobserved_calls:,} of {s.calls:,} calls were not observed: what they allocate "
            "is not counted",
            style="yellow",
        )


def _crop(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _category(page: Page, b: Breakdown) -> None:
    _breakdown(page, b, ("category",), lambda p: (p.key.replace("_", " "),), limit=len(b.parts))


def _nodes(page: Page, s: Summary) -> None:
    labels = {row.id: row.label for row in s.table}
    _breakdown(
        page,
        s.views[View.NODE],
        ("FX node", "graph", "operator or name"),
        lambda p: (p.key, labels.get(p.graph if p.graph is not None else -1, "-"), p.note or "-"),
    )


def _lines(page: Page, b: Breakdown) -> None:
    def cells(p: Share) -> tuple[str, ...]:
        if p.key.startswith("("):
            return p.key, ""
        file, _, line = p.key.rpartition(":")
        return page.path(file, line), p.note

    _breakdown(page, b, ("source line", "code"), cells)


def _modules(page: Page, b: Breakdown, root: ModuleNode) -> None:
    """The largest modules in tree order. A parent is never smaller than its children, so the
    largest ones are a tree themselves."""
    everything = sorted(_walk(root, 0), key=lambda n: (-n[0].nbytes, n[1]))
    chosen = {id(n) for n, _ in everything[: page.top + 1]}
    page.section(f"Live at the peak, {_VIEW_TITLES[b.view]}")
    table = page.table(">with children", ">share", ">own", "module")
    hidden = hidden_bytes = 0
    for node, depth in _walk(root, 0):
        if node is root and not node.nbytes:
            continue
        if id(node) not in chosen:
            hidden += 1
            hidden_bytes += node.own
            continue
        name = node.name if node is not root else "(root)"
        table.add_row(
            page.bytes(node.nbytes),
            format_share(node.nbytes, b.total),
            page.bytes(node.own),
            Text("  " * depth + name),
        )
    if hidden:
        table.add_row(
            "", format_share(hidden_bytes, b.total), page.bytes(hidden_bytes), f"{hidden} smaller"
        )
    for part in b.parts:
        if part.key.startswith("("):
            share = format_share(part.nbytes, b.total)
            table.add_row("", share, page.bytes(part.nbytes), Text(part.key))
    _foot(page, table, b, lambda n, share, name: ("", share, n, name))
    page.show(table)


def _walk(node: ModuleNode, depth: int) -> Iterable[tuple[ModuleNode, int]]:
    yield node, depth
    for child in node.children:
        yield from _walk(child, depth + 1)


def _breakdown(
    page: Page,
    b: Breakdown,
    columns: tuple[str, ...],
    cells: Callable[[Share], tuple[str, ...]],
    limit: int | None = None,
) -> None:
    page.section(f"Live at the peak, {_VIEW_TITLES[b.view]}")
    table = page.table(">bytes", ">share", ">storages", *columns)
    limit = page.top if limit is None else limit
    blank = ("",) * (len(columns) - 1)
    for p in b.parts[:limit]:
        row = (Text(c) for c in cells(p))
        table.add_row(
            page.bytes(p.nbytes), format_share(p.nbytes, b.total), f"{p.storages:,}", *row
        )
    rest = b.parts[limit:]
    if rest:
        n = sum(p.nbytes for p in rest)
        count = sum(p.storages for p in rest)
        table.add_row(
            page.bytes(n), format_share(n, b.total), f"{count:,}", f"{len(rest)} smaller", *blank
        )
    _foot(page, table, b, lambda n, share, name: (n, share, "", name, *blank))
    page.show(table)


def _foot(
    page: Page,
    table: Table,
    b: Breakdown,
    row: Callable[[str, str, str], tuple[str, ...]],
) -> None:
    n = b.unattributed
    table.add_row(
        *row(page.bytes(n), format_share(n, b.total), "unattributed"),
        style="yellow" if n else "dim",
    )
    table.add_row(*row(page.bytes(b.total), format_share(b.total, b.total), "total"))


def _saved(page: Page, s: Summary) -> None:
    page.section("Saved for the backward, by bytes x calls until it runs")
    if not s.saved:
        page.line("  nothing: no forward with a backward was observed")
        return
    table = page.table(">bytes", ">calls", "graph", "FX node", "module", "source line")
    for a in s.saved[: page.top]:
        table.add_row(
            page.bytes(a.nbytes),
            "-" if a.lifetime_calls is None else f"{a.lifetime_calls:g}",
            a.graph,
            Text(a.node or f"({a.op or 'unknown'})"),
            Text("-" if a.module is None else a.module or "(root)"),
            Text(page.location(a.frame)),
        )
    rest = s.saved[page.top :]
    if rest:
        n = page.bytes(sum(a.nbytes for a in rest))
        table.add_row(n, "", "", f"{len(rest)} smaller", "", "")
    page.show(table)


def _graphs(page: Page, s: Summary) -> None:
    page.section("Graphs, bytes of one call")
    if not s.table:
        page.line("  none was compiled")
        return
    table = page.table("graph", ">calls", ">median", ">allocated", ">peak", ">saved", ">programs")
    rows = sorted(s.table, key=lambda r: (-(r.peak or 0), r.id))
    for r in rows[: max(page.top, 10)]:
        table.add_row(
            r.label,
            f"{r.calls:,}",
            "-" if r.median_ns is None else format_ns(r.median_ns),
            *("-" if n is None else page.bytes(n) for n in (r.allocated, r.peak, r.saved)),
            f"{r.programs}",
        )
    hidden = rows[max(page.top, 10) :]
    if hidden:
        calls = sum(r.calls for r in hidden)
        table.add_row(f"{len(hidden)} more", f"{calls:,}", "", "", "", "", "")
    page.show(table)
    for u in s.unobserved[: page.top]:
        label = next(r.label for r in s.table if r.id == u.graph)
        page.line(f"{u.calls:,} calls of {label} were not observed: {u.reason}", "yellow")
    if rest := s.unobserved[page.top :]:
        n = sum(u.calls for u in rest)
        page.line(f"{n:,} calls of {len(rest):,} more graphs were not observed", "yellow")


def _trees(page: Page, s: Summary) -> None:
    if not s.trees:
        return
    pools = ", ".join(f"{d} {page.bytes(n)}" for d, n in sorted(s.pools.items()))
    page.section(f"Graph trees and arenas{f', largest pools: {pools}' if pools else ''}")
    table = page.table(
        "function", "device", ">sizes", ">warm-ups", ">recorded", ">again", ">replays", ">pool"
    )
    for f in s.trees[: page.top]:
        table.add_row(
            f.function,
            f.device,
            f"{f.keys:,}",
            *(f"{n:,}" for n in (f.warm_ups, f.recordings, f.rerecordings)),
            f"{f.replays:,}",
            page.bytes(f.marginal_bytes),
        )
    if hidden := s.trees[page.top :]:
        rest = page.bytes(sum(f.marginal_bytes for f in hidden))
        table.add_row(f"{len(hidden)} more", "", "", "", "", "", "", rest)
    page.show(table)
    if any(f.device == "cpu" for f in s.trees):
        page.line(
            "  on the CPU a row's pool is scratch memory; the largest has blocks of outputs too"
        )
    reasons = sorted(((f, r) for f in s.trees for r in f.reasons), key=lambda x: -x[1].count)
    for f, r in reasons[: page.top]:
        kind = r.kind.value.replace("_", " ")
        page.line(f"  {r.count:,} x {kind}: {r.reason} ({f.function})")
    if len(reasons) > page.top:
        page.line(f"  {len(reasons) - page.top} more reasons: memprof ledger FILE")


def _ledger(page: Page, s: Summary) -> None:
    page.section("Ledger")
    c = s.ledger.counts
    page.line(
        f"  compiled {c['compiled']:,}, found in a cache {c['cache_hit']:,}, compiled again past a "
        f"cache {c['recompiled']:,}, observed {c['observed']:,}, reset {c['reset']:,}"
    )
    _reasons(page, "not observed", s.ledger.not_observed, "yellow")
    _reasons(page, "compiled again past a cache", s.ledger.recompiled, "")
    _reasons(page, "fallbacks to plain Inductor", s.ledger.fallbacks, "red")


def _reasons(page: Page, title: str, reasons: tuple[Reason, ...], style: str) -> None:
    if not reasons:
        if "fallback" in title:
            page.line(f"  no {title}")
        return
    page.line(f"  {title}: {sum(r.count for r in reasons):,}", style=style)
    for r in reasons[: page.top]:
        graphs = f" ({', '.join(r.graphs[:3])}{', …' if len(r.graphs) > 3 else ''})"
        page.line(f"    {r.count:,} x {r.reason}{graphs if r.graphs else ''}")
    if len(reasons) > page.top:
        page.line(f"    {len(reasons) - page.top} more reasons: memprof ledger FILE")


def _remainder(page: Page, s: Summary) -> None:
    page.section("Unattributed")
    page.line("  at the peak:")
    for view, b in s.views.items():
        left = f"{page.bytes(b.unattributed)} ({format_share(b.unattributed, b.total)})"
        page.line(f"    {_VIEW_TITLES[view]:<16} {left}", "yellow" if b.unattributed else "")
        _shares(page, 6, [(r.key, r.nbytes) for r in b.remainder])
    c = s.coverage
    page.line(
        f"  of {page.bytes(c.allocated)} that compiled code allocates in one call of each program:"
    )
    page.line(f"    {format_share(c.to_node, c.allocated):>7} attributed to an FX node")
    page.line(f"    {format_share(c.to_source, c.allocated):>7} to a source line or module")
    _shares(page, 4, [*c.missing.items()])
    if s.kept_bytes:
        kept = page.bytes(s.kept_bytes)
        page.line(f"  not counted: {kept} that libraries allocated in first calls and kept")
    if s.without_scratch:
        page.line(
            f"  not counted: scratch memory inside kernels of {s.without_scratch:,} of "
            f"{sum(r.programs for r in s.table):,} programs; another profiler ran when they were "
            "observed",
            "yellow",
        )
    page.line("  never seen: tensors that eager code makes or keeps outside compiled calls")


def _shares(page: Page, indent: int, reasons: list[tuple[str, int]]) -> None:
    """Reasons and their bytes, largest first; those there is no room for are added up."""
    for reason, n in reasons[: page.top]:
        page.line(f"{'':{indent}}{page.bytes(n)}: {reason}")
    if rest := reasons[page.top :]:
        page.line(f"{'':{indent}}{page.bytes(sum(n for _, n in rest))}: {len(rest)} more reasons")

"""Live memory of compiled code: the peak, what was live at it, what is saved, each graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...attribution import Breakdown, ModuleNode, Share, View
from ...model import Category, Profile
from ..columns import BYTES, CATEGORY, LINE, MODULE, Cell, Column, Unit, alike, below, share
from ..format import format_bytes, format_ns, format_share, shorten_path
from ..section import EVERY, Foot, Note, Section, Show, Table, Tone
from ..summary import Summary
from .about import VIEW_TITLES, module_name
from .trees import why_no_addresses
from .words import MEANING

_BRIEF = 4
"""Source lines of a short text."""
_WAITING, _HELD, _HELD_SHARE = 2, 1 << 20, 0.02
"""Calls without a backward that are worth a word, bytes that they can hold, and these as a part of
the peak."""
_CODE = 100
"""Characters of generated code in a note."""


def peak(s: Summary, show: Show) -> Section:
    """When live memory was highest and what ran then."""
    p = s.peak
    if p is None:
        none = Note("No call of a compiled graph was recorded, so there is no peak.")
        return Section("peak", "", (none,))
    after = f"{format_ns(p.after_ns)} after the first call began"
    notes = [Note(f"in call {p.call + 1:,} of {s.calls:,}, {p.graph}, {after}")]
    if p.line:
        code = p.statement if len(p.statement) <= _CODE else f"{p.statement[:_CODE]}…"
        at = f"after line {p.line} of the generated code"
        notes.append(Note(at + (f": {code}" if code else ""), detail=True))
    elif p.instant == 0:
        notes.append(Note("at the entry of the call"))
    if p.node:
        where = f", {shorten_path(p.frame.file)}:{p.frame.line}" if p.frame else ""
        notes.append(Note(f"for FX node {p.node}{where}"))
    others = [f"{d} {show(n)}" for d, n in s.device_peaks.items() if d != s.device]
    if others:
        notes.append(Note("other devices: " + ", ".join(others), detail=True))
    if s.unobserved_calls:
        said = f"{s.unobserved_calls:,} of {s.calls:,} calls were not observed: what they allocate "
        notes.append(Note(said + "is not counted", Tone.WARN))
    for row in s.table:
        held = row.waiting * (row.saved or 0)
        if row.waiting >= _WAITING and held >= max(_HELD, _HELD_SHARE * p.nbytes):
            said = f"{row.waiting:,} of {row.calls:,} calls of {row.label} had no backward: what "
            said += (
                f"they saved, {show(row.saved or 0)} each, {show(held)} in all, is held as long "
            )
            notes.append(Note(said + "as their outputs are, and is not in this peak", Tone.WARN))
    known = f"Peak of known live memory on {s.device}: {format_bytes(p.nbytes)}"
    return Section("peak", f"{known} ({p.nbytes:,} B)", tuple(notes))


def figures(s: Summary, show: Show) -> list[tuple[str, str, str]]:
    """The numbers that a page begins with: what, how much, and a remark."""
    if s.peak is None:
        return [("Peak", "-", "no call of a compiled graph was recorded")]
    largest = next(iter(s.views[View.CATEGORY].parts), None)
    total, line = s.peak.nbytes, s.views[View.LINE].unattributed
    at = f"in call {s.peak.call + 1:,} of {s.calls:,}, {s.peak.graph}"
    graphs = f"{s.calls:,} calls in {format_ns(s.span_ns)}"
    if s.dropped_calls:
        graphs += f"; {s.dropped_calls:,} earlier ones are no longer in the log"
    most = ("unknown", "")
    if largest is not None:
        part = f"{show(largest.nbytes)}, {format_share(largest.nbytes, total)}"
        most = (largest.key.replace("_", " "), part)
    none = f"{format_share(line, total)} has no source line"
    out = [
        (f"Peak on {s.device}", show(total), at),
        ("Most of it", *most),
        ("Unattributed at the peak", show(line), none),
        ("Compiled", f"{s.graphs:,} graphs", graphs),
    ]
    if s.unobserved_calls:
        remark = "what these allocate is not counted; see Graphs"
        out.append(("Not observed", f"{s.unobserved_calls:,} calls", remark))
    return out


def of_instant(profile: Profile) -> Iterator[Section]:
    """What a page shows of the instant that is chosen, or why there is none."""
    if not len(profile.calls):
        none = (
            "No call of a compiled graph was recorded: nothing that torch.compile made ran while "
        )
        yield Section("over-time", "Memory over time", (Note(none + "the profile was taken."),))
        return
    yield Section("over-time", "Memory over time", view="timeline")
    yield Section("live-set", "Live set", view="live")
    if any(g.placements for g in profile.graphs):
        said = (
            "Bottom to top: addresses, each segment on its own scale. Left to right: the instants "
            "of one replay. Each box is a block from its allocation to its release; what is empty "
            "is free. The line is the chosen instant. Parameters lie elsewhere, and workspaces "
            "that libraries took while a graph was recorded are in it, so its sum is not that of "
            "the live set."
        )
        yield Section("addresses", "Address map", (Note(said),), view="addresses")
        return
    why = why_no_addresses(profile).get("", "")
    said = (
        "No graph of this profile runs at fixed addresses: none was recorded as a CUDA graph and "
    )
    said += "none has an arena." + (f" The ledger says: {why}." if why else "")
    yield Section("addresses", "Address map", (Note(said),))


def _below(*titles: str) -> tuple[Column, ...]:
    return alike(Unit.CODE, *titles, below=True)


def live_columns(view: View, total: int = 0) -> tuple[Column, ...]:
    """A live set by ``view``: bytes, share, storages, name, and what is said below the name."""
    names = {
        View.CATEGORY: (CATEGORY,),
        View.MODULE: (MODULE,),
        View.NODE: (Column("FX node", Unit.CODE), *_below("graph", "operator or name")),
        View.LINE: (Column("source line", Unit.PATH), Column("code", Unit.CODE, below=True)),
        View.GRAPH: (Column("graph", Unit.CODE),),
    }
    return (BYTES, share(total), Column("storages", Unit.COUNT, adds=True), *names[view])


def live_templates() -> dict[str, Table]:
    """The tables of a page that it fills itself, for the instant that is chosen; by name."""

    storage = (Column("copies", Unit.COUNT), Column("storage", Unit.CODE), below(CATEGORY))
    address = (Column("address", Unit.ADDRESS), BYTES, Column("what", Unit.CODE), below(CATEGORY))
    return {view.value: Table(live_columns(view)) for view in View} | {
        "storage": Table((BYTES, share(0), *storage, *_below("graph", "FX node", "name"))),
        "addresses": Table(
            (*address, *_below("module", "made by", "source line")),
            empty="Nothing is there at this instant.",
        ),
    }


def peak_breakdowns(s: Summary, show: Show) -> Iterator[Section]:
    """The live set at the peak, for a text; a page shows that of any instant."""
    if s.peak is None:
        return
    labels = {row.id: row.label for row in s.table}

    def row(view: View, p: Share, total: int) -> tuple[Cell, ...]:
        key = p.key
        if view is View.LINE and not key.startswith("("):
            key = shorten_path(key)
        more: tuple[Cell, ...] = ()
        if view is View.NODE:
            more = (labels.get(-1 if p.graph is None else p.graph, "-"), p.note or "-")
        elif view is View.CATEGORY:
            more = (MEANING.get(Category(p.key), ""),)
        elif view is View.LINE:
            more = (p.note,)
        return (p.nbytes, p.nbytes, p.storages, key, *more)

    # Where the device has an account, that says what the peak is made of.
    watched = {a.device for a in s.profile.accounts if not a.present}
    told = {View.CATEGORY: watched | {p.device for p in s.at_peak}, View.LINE: watched}
    for view in (View.CATEGORY, View.LINE, View.MODULE, View.NODE):
        b = s.views[view]
        name = VIEW_TITLES[view]
        detail = view not in told or s.device in told[view]
        title, name = f"Live at the peak, by {name}", f"compiled code by {name}"
        if view is View.MODULE:
            tables = (_modules(b, s.modules),)
            yield Section("", title, tables=tables, detail=detail, name=name)
            continue
        columns = live_columns(view, b.total)
        if view is View.CATEGORY:
            columns += (Column("that is"),)
        blank = ("",) * (len(columns) - 4)
        foot: tuple[Foot, ...] = (
            Foot((b.unattributed, b.unattributed, "", "unattributed", *blank), _tone(b)),
            Foot((b.total, b.total, "", "total", *blank)),
        )
        rows = [row(view, p, b.total) for p in b.parts]
        least = len(Category) if view is View.CATEGORY else 1
        brief = EVERY if view is View.CATEGORY else _BRIEF
        tables = (Table(columns, rows, foot, least=least, brief=brief, rest="smaller"),)
        notes: tuple[Note, ...] = ()
        if view is View.LINE and (none := without(b)):
            share = format_share(none, b.total)
            notes = (Note(f"{show(none)}, {share}, have no line: compiled code did not make them"),)
        spare = 2 if view is View.LINE else 1
        yield Section("", title, notes, tables, detail=detail, name=name, spare=spare)


def without(b: Breakdown) -> int:
    """Bytes in parts that have no line, module or node: what compiled code has not made."""
    return sum(p.nbytes for p in b.parts if p.key.startswith("("))


def _tone(b: Breakdown) -> Tone:
    return Tone.WARN if b.unattributed else Tone.DIM


def _modules(b: Breakdown, root: ModuleNode) -> Table:
    nodes = [n for n in _walk(root, 0) if n[0] is not root or root.nbytes]
    columns = (
        Column("with children", Unit.BYTES),
        Column("share", Unit.SHARE, whole=b.total),
        Column("own", Unit.BYTES, adds=True),
        Column("module", Unit.CODE),
    )
    outside = [Foot(("", p.nbytes, p.nbytes, p.key)) for p in b.parts if p.key.startswith("(")]
    foot = (
        *outside,
        Foot(("", b.unattributed, b.unattributed, "unattributed"), _tone(b)),
        Foot(("", b.total, b.total, "total")),
    )
    return Table(
        columns,
        [(n.nbytes, n.nbytes, n.own, "(root)" if n is root else n.name) for n, _ in nodes],
        foot,
        depth=[depth for _, depth in nodes],
        largest=0,
        least=3,
        rest="smaller",
    )


def _walk(node: ModuleNode, depth: int) -> Iterable[tuple[ModuleNode, int]]:
    yield node, depth
    for child in node.children:
        yield from _walk(child, depth + 1)


def saved(s: Summary, show: Show) -> Section:
    """Activations that forwards leave for their backwards."""
    total, cost = sum(a.nbytes for a in s.saved), round(sum(a.cost for a in s.saved))
    calls = "Compiled calls from the forward to its backward, median; 1 is the very next"
    columns = (
        BYTES,
        Column("calls", Unit.COUNT, calls),
        Column("cost", Unit.SHARE, "Bytes x calls, as a share of all", whole=cost, only="page"),
        Column("FX node", Unit.CODE),
        *(below(Column("graph", Unit.CODE)), below(MODULE), below(LINE)),
    )
    rows = [
        (
            *(a.nbytes, a.lifetime_calls, round(a.cost), a.node or f"({a.op or 'unknown'})"),
            *(a.graph, module_name(a.module), a.frame),
        )
        for a in s.saved
    ]
    foot = (Foot((total, "", "", "total", "", "", "")),) if rows else ()
    notes = f"{show(total)} are left for the backwards by one call of each forward. Large memory "
    notes += "held long is what recomputing or offloading it saves most on."
    none = "No forward with a backward was observed, so nothing is saved from one to the other."
    return Section(
        "saved",
        "Saved activations, by bytes x calls until the backward",
        (Note(notes, only="page"),) if rows else (),
        (Table(columns, rows, foot, rest="smaller", empty=none),),
        detail=True,
        name="saved activations",
    )


def graphs(s: Summary) -> Section:
    """One row a compiled graph, and which calls were not observed."""
    columns = (
        Column("graph", Unit.CODE),
        Column("calls", Unit.COUNT, adds=True),
        Column("median", Unit.NS, "Duration of a call on the host"),
        Column("allocated", Unit.BYTES, "All allocations of a call added up"),
        Column("peak", Unit.BYTES, "Most bytes live inside a call, its inputs included"),
        Column("saved", Unit.BYTES, "Left for the backward"),
        Column("programs", Unit.COUNT, "One for each combination of sizes"),
    )
    ordered = sorted(s.table, key=lambda r: (-(r.peak or 0), r.id))
    rows = [
        (r.label, r.calls, r.median_ns, r.allocated, r.peak, r.saved, r.programs) for r in ordered
    ]
    labels = {r.id: r.label for r in s.table}
    missing = Table(
        (Column("calls", Unit.COUNT, adds=True), Column("graph"), Column("why", fold=True)),
        [(u.calls, labels[u.graph], u.reason) for u in s.unobserved],
        caption="Calls that were not observed: what they allocate is not counted",
        rest="more graphs",
        lines=True,
    )
    none = "No graph was compiled while the profile was taken."
    tables = [Table(columns, rows, least=10, empty=none)]
    others = [
        (r.label, _names(r.mutates), _names(r.aliases), r.donated or None)
        for r in ordered
        if r.mutates or r.aliases or r.donated
    ]
    if others:
        tables.append(_others(others))
    if s.unobserved:
        tables.append(missing)
    title = "Graphs; bytes of one call of the most called program"
    return Section("graphs", title, tables=tuple(tables), detail=True, name="graphs")


def _others(rows: Sequence[tuple[Cell, ...]]) -> Table:
    """What calls do with memory that is not theirs."""
    columns = (
        Column("graph", Unit.CODE),
        Column("writes to", Unit.CODE, "Inputs that a call changes in place", fold=True),
        Column("returns", Unit.CODE, "Inputs that are its outputs too, or that these view"),
        Column("may overwrite", Unit.BYTES, "Saved activations that nobody else holds"),
    )
    return Table(columns, rows, caption="Memory that graphs were given", rest="more graphs")


def _names(names: Sequence[str], most: int = 3) -> str:
    """The first of ``names``, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")

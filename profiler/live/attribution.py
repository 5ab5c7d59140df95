"""Attribution of compiled code's live memory: live sets → category, module, FX node, source line,
graph; and bytes by what they have in common.

Every view of a live set adds up: its parts and its remainder are together exactly the bytes of the
set. A part named in parentheses, such as ``(input)``, is memory that compiled code did not make.
The remainder is memory of which we do not know, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    DataFlowStorage,
    EventKind,
    GraphKind,
    GraphRecord,
    GraphValue,
    LiveStorage,
    NodeProvenance,
    Profile,
    SourceFrame,
    Storage,
)

from .live_set import LiveItem


class View(str, Enum):
    """Kind of place that bytes are attributed to."""

    CATEGORY = "category"
    MODULE = "module"
    NODE = "node"
    LINE = "line"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of one category, module, node, line or graph, or of one reason; ``graph`` where the key
    is only unique within it, ``note`` the operator of a node or the code of a line."""

    key: str
    nbytes: int
    storages: int
    graph: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One view of a live set: ``total == attributed + unattributed``, exactly, in bytes; largest
    first."""

    view: View
    total: int
    attributed: int
    unattributed: int
    parts: tuple[Share, ...]
    remainder: tuple[Share, ...]


Named = tuple[str, int | None, str] | None
"""The part that a storage belongs to: key, graph id if the key is only unique there, note. None
is the remainder."""


def break_down(view: View, items: Iterable[tuple[int, int, Named, str]]) -> Breakdown:
    """The breakdown of items: of each the bytes, the number of storages, the part that it belongs
    to, and the reason if it belongs to none."""
    sums: dict[tuple[bool, str, int | None], Share] = {}
    for nbytes, count, named, why in items:
        key, graph, note = named if named is not None else (why, None, "")
        where = (named is not None, key, graph)
        known = sums.get(where, Share(key, 0, 0, graph, note))
        sums[where] = replace(known, nbytes=known.nbytes + nbytes, storages=known.storages + count)
    shares = sorted(sums.items(), key=lambda s: (-s[1].nbytes, s[1].key, s[1].graph or 0))
    parts = tuple(share for (is_part, *_), share in shares if is_part)
    remainder = tuple(share for (is_part, *_), share in shares if not is_part)
    attributed, rest = (sum(s.nbytes for s in found) for found in (parts, remainder))
    return Breakdown(view, attributed + rest, attributed, rest, parts, remainder)


def data_flow_breakdown(live: Iterable[DataFlowStorage], view: View) -> Breakdown:
    """One view of what the data-flow profile has live; its nodes are the operators."""
    found = []
    for s in live:
        why = "before the trace" if s.created_ns is None else "unattributed"
        found.append((s.nbytes, 1, _data_flow_part(s, view), why))
    return break_down(view, found)


def _data_flow_part(storage: DataFlowStorage, view: View) -> Named:
    match view:
        case View.LINE:
            frame = storage.frame
            return (frame.location, None, frame.code.strip()) if frame is not None else None
        case View.GRAPH:
            key = None
        case View.CATEGORY:
            unknown = storage.category is Category.UNKNOWN
            key = None if unknown else storage.category.value
        case View.MODULE:
            key = storage.module
        case View.NODE:
            key = storage.op
    return None if key is None else (key, None, "")


@dataclass(frozen=True, slots=True)
class Site:
    """Origin of one storage. What is None is unknown, for the reason, by view, in ``why``.

    Attributes:
        graph: id of the graph that explains it.
        node: FX node that made it, or the placeholder it entered by.
        op: the operator as the user would know it, e.g. ``aten.mm.default``.
        module: its path, "" is the root.
        frame: innermost of user code.
        fqn: name of the parameter, buffer or input.
        outside: what it is, in words, if no compiled code made it. The gradient of an output
            has the module and the frame of the output all the same.
    """

    graph: int
    category: Category
    node: str | None = None
    op: str | None = None
    module: str | None = None
    frame: SourceFrame | None = None
    fqn: str | None = None
    outside: str | None = None
    why: dict[View, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Bytes that programs allocate, inputs excluded: all, those attributed to an FX node, those
    attributed to a source line or a module, and, by reason, those that miss either."""

    allocated: int = 0
    to_node: int = 0
    to_source: int = 0
    missing: dict[str, int] = field(default_factory=dict)


_ENTERED = {
    Category.PARAMETER: "parameter",
    Category.PERSISTENT_STATE: "persistent state",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.GRADIENT: "gradient",
    Category.INPUT: "input",
    Category.AUTOGRAD_DETAIL: "autograd detail",
    Category.OUTPUT: "output of another graph",
    Category.TEMPORARY: "input",
    Category.CONSTANT: "constant",
}


class Attribution:
    """Attributes storages of one profile; each site is looked up once."""

    def __init__(self, profile: Profile) -> None:
        self._graphs = {g.id: g for g in profile.graphs}
        self._forwards = {
            g.graph_id: g
            for g in reversed(profile.graphs)
            if g.kind is GraphKind.FORWARD and g.graph_id is not None
        }
        self._sites: dict[tuple[int, str | None, int, Storage], Site] = {}
        self._outputs: dict[int, dict[int, LiveStorage]] = {}

    def site(self, graph: int, storage: Storage, owner: str | None, line: int) -> Site:
        """Origin of ``storage`` of a program of the graph with id ``graph``, owned by the buffer
        ``owner`` since ``line``."""
        key = (graph, owner, line, storage)
        found = self._sites.get(key)
        if found is None:
            found = self._sites[key] = self._resolve(graph, storage, owner, line)
        return found

    def site_of(self, item: LiveItem) -> Site:
        """Origin of a live storage, by the buffer that owns it at that instant."""
        return self.site(item.graph, item.storage, item.owner, item.line)

    def breakdown(self, live: Iterable[LiveItem], view: View) -> Breakdown:
        """One view of a live set."""
        found = []
        for item in live:
            site = self.site_of(item)
            why = site.why.get(view, "unknown")
            found.append((item.nbytes, item.count, self.named(site, view), why))
        return break_down(view, found)

    def named(self, site: Site, view: View) -> Named:
        """The part of ``view`` that a site belongs to, as (key, graph, note) of its ``Share``;
        None if it is in the remainder, for the reason ``site.why.get(view, "unknown")``."""
        match view:
            case View.CATEGORY:
                unknown = site.category is Category.UNKNOWN
                return None if unknown else (site.category.value, None, "")
            case View.MODULE:
                if site.module is not None:
                    return site.module, None, ""
                return None if View.MODULE in site.why else _outside(site)
            case View.NODE:
                if site.node is None:
                    return None
                return site.node, site.graph, site.op or site.fqn or ""
            case View.LINE:
                if site.frame is not None:
                    return site.frame.location, None, site.frame.code.strip()
                return _outside(site)
            case View.GRAPH:
                if site.outside or View.GRAPH in site.why:
                    return _outside(site)
                return self.label(site.graph), site.graph, ""

    def coverage(self, programs: Iterable[tuple[GraphRecord, AllocationProgram]]) -> Coverage:
        """Bytes that one call of each program allocates, and those of them that are attributed."""
        allocated = to_node = to_source = 0
        missing: Counter[str] = Counter()
        made = ((g, p.storages[e.storage], e) for g, p in programs for e in p.events)
        for graph, storage, e in made:
            if e.kind is not EventKind.ALLOC:
                continue
            site = self.site(graph.id, storage, e.owner, e.line)
            sourced = site.frame is not None or site.module is not None
            allocated += storage.nbytes
            to_node += storage.nbytes if site.node is not None else 0
            to_source += storage.nbytes if sourced else 0
            if site.node is None or not sourced:
                view = View.NODE if site.node is None else View.LINE
                missing[site.why.get(view, "unknown")] += storage.nbytes
        return Coverage(allocated, to_node, to_source, dict(missing.most_common()))

    def label(self, graph: int) -> str:
        return self._graphs[graph].label

    # How a storage is resolved

    def _resolve(self, id: int, storage: Storage, owner: str | None, line: int) -> Site:
        graph = self._graphs.get(id)
        if graph is None:
            # A session has no graph that was not called in it, and yet recordings that hold what
            # such a graph made.
            reason = "made by a graph that is not in this profile"
            return _unknown(id, storage, reason, View.GRAPH)
        # An input stays one when another input's name is the last that holds it (queries,
        # keys and values in one storage); it changes hands when a buffer takes it over.
        if storage.at_entry and owner not in graph.buffers:
            return self._input(graph, storage)
        if owner is None:
            owner = graph.buffer_of_line(line)
            if owner is None:
                return _unknown(
                    id, storage, f"line {line} of the generated code computes no known buffer"
                )
        buffer = graph.buffers.get(owner)
        if buffer is None:
            return _unknown(id, storage, "the generated code's buffer has no provenance")
        # Nodes are in graph order: without a primary one, the buffer holds the last's value.
        name = buffer.primary or (buffer.nodes[-1] if buffer.nodes else None)
        if name is None:
            return _unknown(id, storage, f"the compiler names no FX node for a {buffer.kind}")
        node = graph.nodes.get(name)
        if node is None:
            return _unknown(id, storage, "the FX node has no record")
        return _node(graph, storage, node)

    def _input(self, graph: GraphRecord, storage: Storage) -> Site:
        value = graph.inputs[storage.inputs[0]] if storage.inputs else None
        if value is not None and value.forward_output is not None:
            made = self._forward_output(graph, storage, value, value.forward_output)
            if made is not None:
                return made
        outside = _ENTERED.get(storage.category)
        why: dict[View, str] = {}
        if outside is None:
            reason = (
                "saved by a forward of which there is no record"
                if storage.category in (Category.ACTIVATION, Category.CHECKPOINTED_INPUT)
                else "an input of unknown category"
            )
            why = dict.fromkeys((View.MODULE, View.LINE, View.GRAPH), reason)
        module = None
        if storage.category in (Category.PARAMETER, Category.PERSISTENT_STATE):
            if value is not None and value.fqn:
                module = value.fqn.rpartition(".")[0]
            else:
                why[View.MODULE] = "a parameter whose name is not known"
        if value is None and not storage.name:
            why[View.NODE] = "an input without a placeholder"
        site = _site(
            graph.id,
            storage,
            why,
            node=value.name if value else storage.name or None,
            module=module,
            fqn=value.label if value and value.fqn else None,
            outside=outside,
        )
        if value is None or value.gradient_of is None:
            return site
        # Whoever made it, it is as large as the output, and that can be changed where it is made.
        made = self._forward_output(graph, storage, value, value.gradient_of)
        if made is None or made.node is None:
            return site
        return replace(site, op=f"gradient of {made.node}", module=made.module, frame=made.frame)

    def _forward_output(
        self, graph: GraphRecord, storage: Storage, value: GraphValue, index: int
    ) -> Site | None:
        """Origin of a backward's input ``value``, which is output ``index`` of its forward; None if
        it is not known."""
        forward = None if graph.graph_id is None else self._forwards.get(graph.graph_id)
        if value.forward_graph is not None:
            forward = self._graphs.get(value.forward_graph)
        if forward is None or index >= len(forward.outputs):
            return None
        made = forward.nodes.get(forward.outputs[index].name)
        if made is not None:
            return _node(forward, storage, made)
        # A saved view (a query split off from one matrix) is no node that a buffer holds; the
        # buffer that the forward returned it in is what occupies memory.
        s = self._made_outputs(forward).get(index)
        return None if s is None else self._resolve(forward.id, s.storage, s.owner, s.line)

    def _made_outputs(self, graph: GraphRecord) -> dict[int, LiveStorage]:
        """Storages that a graph made and returns, by index of the output, each from the first
        program that returns it."""
        found = self._outputs.get(graph.id)
        if found is None:
            found = self._outputs[graph.id] = {}
            for live in (s for p in graph.programs for s in p.surviving()):
                if not live.storage.at_entry:
                    for output in live.storage.outputs:
                        found.setdefault(output, live)
        return found


def _node(graph: GraphRecord, storage: Storage, node: NodeProvenance) -> Site:
    why = {}
    if node.module_path is None:
        why[View.MODULE] = "the FX node belongs to no known module"
    if node.frame is None:
        why[View.LINE] = "the FX node has no user source line"
    site = _site(
        graph.id,
        storage,
        why,
        node=node.name,
        op=node.original_aten or node.target,
        module=node.module_path,
        frame=node.frame,
    )
    again = node.recomputed and storage.category is Category.TEMPORARY
    return replace(site, category=Category.ACTIVATION) if again else site


def _unknown(graph: int, storage: Storage, reason: str, *more: View) -> Site:
    return _site(graph, storage, dict.fromkeys((View.NODE, View.MODULE, View.LINE, *more), reason))


def _site(graph: int, storage: Storage, why: dict[View, str], **known: Any) -> Site:
    if storage.category is Category.UNKNOWN:
        why[View.CATEGORY] = "category unknown"
    return Site(graph, storage.category, why=why, **known)


def _outside(site: Site) -> Named:
    return (f"({site.outside})", None, "") if site.outside else None

"""Bytes by what they have in common: the one breakdown of everything that is live.

Every view of a live set adds up: its parts and its remainder are together exactly the
bytes of the set. A part named in parentheses, such as ``(input)``, is memory that compiled
code did not make, where the view asks for something that only compiled code has. The
remainder is memory of which we do not know, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from .model import Category, DataFlowStorage

DEEPEST = 64
"""Levels of a tree of modules, several times as many as models have. Paths come from files: what is
nested further would be a level of recursion to everything that walks or shows the tree."""


class View(str, Enum):
    """What bytes are attributed to."""

    CATEGORY = "category"
    MODULE = "module"
    NODE = "node"
    LINE = "line"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of one category, module, node, line or graph, or of one reason; ``graph`` is there
    where the key is only unique within it, ``note`` is the operator of a node or the code of a
    line."""

    key: str
    nbytes: int
    storages: int
    graph: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One view of a live set: ``total == attributed + unattributed``, exactly, in bytes. Parts and
    the reasons in the remainder come largest first."""

    view: View
    total: int
    attributed: int
    unattributed: int
    parts: tuple[Share, ...]
    remainder: tuple[Share, ...]


@dataclass(slots=True)
class ModuleNode:
    """A module by the last part of its path and the whole path, "" for the root, with the bytes of
    its own and with all below; children come largest first."""

    name: str
    path: str
    own: int = 0
    nbytes: int = 0
    children: list[ModuleNode] = field(default_factory=list)


Named = tuple[str, int | None, str] | None
"""The part that a storage belongs to: key, graph id if the key is only unique there, note. None
is the remainder."""


def break_down(view: View, items: Iterable[tuple[int, int, Named, str]]) -> Breakdown:
    """The breakdown of ``items``: of each the bytes, the number of storages, the part that it
    belongs to, and the reason if it belongs to none."""
    sums: dict[tuple[bool, str, int | None], list[int]] = {}
    notes: dict[tuple[bool, str, int | None], str] = {}
    total = 0
    for nbytes, count, named, why in items:
        key = (False, why, None) if named is None else (True, named[0], named[1])
        if named is not None:
            notes.setdefault(key, named[2])
        entry = sums.setdefault(key, [0, 0])
        entry[0] += nbytes
        entry[1] += count
        total += nbytes
    shares = sorted(
        ((k, Share(k[1], n, c, k[2], notes.get(k, ""))) for k, (n, c) in sums.items()),
        key=lambda s: (-s[1].nbytes, s[1].key, s[1].graph or 0),
    )
    parts = tuple(s for k, s in shares if k[0])
    attributed = sum(s.nbytes for s in parts)
    remainder = tuple(s for k, s in shares if not k[0])
    return Breakdown(view, total, attributed, total - attributed, parts, remainder)


def data_flow_breakdown(live: Iterable[DataFlowStorage], view: View) -> Breakdown:
    """One view of what the data-flow profile has live; its nodes are the operators."""
    name = _DATA_FLOW[view]
    return break_down(view, ((s.nbytes, 1, name(s), _why_unattributed(s, view)) for s in live))


def _why_unattributed(storage: DataFlowStorage, view: View) -> str:
    if view is View.CATEGORY:
        return storage.why or "unknown"
    return "before the trace" if storage.created_ns is None else "unattributed"


def _plain(key: str | None) -> Named:
    return None if key is None else (key, None, "")


_DATA_FLOW: dict[View, Callable[[DataFlowStorage], Named]] = {
    View.CATEGORY: lambda s: _plain(None if s.category is Category.UNKNOWN else s.category.value),
    View.MODULE: lambda s: _plain(s.module),
    View.NODE: lambda s: _plain(s.op),
    View.LINE: lambda s: (s.frame.location, None, s.frame.code.strip()) if s.frame else None,
    View.GRAPH: lambda s: None if s.graph is None else (str(s.graph), s.graph, ""),
}


def module_parts(path: str) -> list[str]:
    """Names on the way from the root to a module, at most ``DEEPEST``: the last of a longer path is
    all that is left of it."""
    return path.split(".", DEEPEST - 1) if path else []


def module_tree(breakdown: Breakdown) -> ModuleNode:
    """The modules of a module view as a tree of at most ``DEEPEST`` levels below the root.

    The root's ``nbytes`` are all parts that are modules; parts in parentheses are none.
    """
    root = ModuleNode("", "")
    index = {"": root}
    for part in breakdown.parts:
        if part.key.startswith("("):
            continue
        node, path = root, ""
        node.nbytes += part.nbytes
        for name in module_parts(part.key):
            path = f"{path}.{name}" if path else name
            if path not in index:
                index[path] = ModuleNode(name, path)
                node.children.append(index[path])
            node = index[path]
            node.nbytes += part.nbytes
        node.own += part.nbytes
    for node in index.values():
        node.children.sort(key=lambda n: (-n.nbytes, n.path))
    return root

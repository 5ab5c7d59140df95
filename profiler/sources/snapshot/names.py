"""Names of what lines of generated code allocate, from profiles of runs of that code.

Note [Whose generated code]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor names a file of its code cache after what it contains, so a frame of a snapshot and a graph
of a profile with the same file name have the same text, on whatever machine and in whatever run,
and a line of it allocates the same buffer. Several graphs can have one text: layers that were
compiled each for itself, or the same graph in two ranks. Then what they agree on is said (mostly
the nodes), and the graphs are all named.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.model import (
    Category,
    EventKind,
    GraphRecord,
    NodeProvenance,
    Profile,
    StatementKind,
    Storage,
)

_T = TypeVar("_T")
_Allocated = dict[int, list[tuple[Storage, str | None]]]
_LABELS = 3
"""Graphs of the same code that are named before it says how many more there are."""


@dataclass(frozen=True, slots=True)
class Name:
    """Buffer that a line allocates; None is not known."""

    graph: str  # its label, or of several with the same code
    node: str | None  # the FX node
    category: Category | None  # what the memory is for, if it was observed and is one thing only
    module: str | None  # path of the node's module, "" is the root
    target: str | None  # of the node, e.g. ``aten.mm.default``
    trace: str  # user frames of the node as Python prints them, outermost first; "" for none

    def words(self, role: str | None = None) -> str:
        """In a few words, for a viewer that has no fields for these.

        Args:
            role: what the memory is for, where that is not ``category``.
        """
        role = role or (self.category.label if self.category is not None else "")
        module = "(root)" if self.module == "" else self.module
        known = (self.node, role, module, self.graph)
        return ", ".join(part for part in known if part).replace(";", ",")


class CodeNames:
    """Names of the lines of all generated code that some profiles know."""

    def __init__(self, profiles: Iterable[Profile]) -> None:
        self._graphs: dict[str, list[tuple[GraphRecord, Attribution, _Allocated]]] = {}
        for profile in profiles:
            attribution = Attribution(profile)
            for graph in profile.graphs:
                if graph.code_path:
                    known = (graph, attribution, _allocated(graph))
                    self._graphs.setdefault(_file(graph.code_path), []).append(known)

    def knows(self, file: str) -> bool:
        """Tells whether a file is generated code of the profiles, in whatever folder."""
        return _file(file) in self._graphs

    def name(self, file: str, line: int, function: str) -> Name | None:
        """Name of what a line of a file allocates; None if unknown.

        Args:
            file: path of generated code.
            line: from 1.
            function: that the line stands in.
        """
        known = self._graphs.get(_file(file), ())
        names = [name for of in known if (name := _name(*of, line, function)) is not None]
        if len(names) < 2:
            return names[0] if names else None
        labels = list(dict.fromkeys(n.graph for n in names))
        graph = ", ".join(labels[:_LABELS])
        if len(labels) > _LABELS:
            graph += f" and {len(labels) - _LABELS} more"
        return Name(
            graph,
            _agreed(n.node for n in names),
            _agreed(n.category for n in names),
            _agreed(n.module for n in names),
            _agreed(n.target for n in names),
            _agreed(n.trace for n in names) or "",
        )


def _file(path: str) -> str:
    # Not by a regular expression: for a long part and a slash behind it that takes hours.
    return path[max(path.rfind("/"), path.rfind("\\")) + 1 :]


def _name(
    graph: GraphRecord, attribution: Attribution, allocated: _Allocated, line: int, function: str
) -> Name | None:
    """Name of what a line of one graph allocates; None if unknown."""
    at = bisect_right(graph.statements, line, key=lambda s: s.line) - 1
    if at < 0 or graph.statements[at].function.rpartition(".")[2] != function:
        return None
    line = graph.statements[at].line  # A statement of several lines is known by its first.
    found = allocated.get(line, [])
    # Buffers, or where there are none scratch.
    made = [pair for pair in found if pair[1] is not None] or found
    sites = [attribution.site(graph.id, storage, owner, line) for storage, owner in made]
    # Or the buffer that the line computes, in whose kernel memory was asked for.
    node = _agreed(s.node for s in sites) or _node_of(graph, graph.buffer_of_line(line))
    if node is None and graph.statements[at].kind is StatementKind.DELETE:
        deleted = [n for s in graph.statements if s.line == line for n in s.targets]
        node = _node_of(graph, deleted[0]) if len(deleted) == 1 else None
    known = graph.nodes.get(node) if node is not None else None
    category = _agreed(s.category for s in sites)
    if known is None and category is None:
        return None
    return Name(
        graph.label,
        node,
        None if category is Category.UNKNOWN else category,
        known.module_path if known is not None else None,
        (known.original_aten or known.target) if known is not None else None,
        _trace(known),
    )


def _allocated(graph: GraphRecord) -> _Allocated:
    """Storages that each line allocates in any observed program, each with its buffer."""
    found: _Allocated = {}
    for program in graph.programs:
        for e in program.events:
            if e.kind is EventKind.ALLOC:
                found.setdefault(e.line, []).append((program.storages[e.storage], e.owner))
    return found


def _node_of(graph: GraphRecord, owner: str | None) -> str | None:
    buffer = graph.buffers.get(owner or "")
    if buffer is None:
        return None
    return buffer.primary or (buffer.nodes[-1] if buffer.nodes else None)


def _trace(node: NodeProvenance | None) -> str:
    if node is None:
        return ""
    lines = []
    for f in node.stack:
        lines.append(f'  File "{f.file}", line {f.line}, in {f.function}')
        if f.code:
            lines.append(f"    {f.code.strip()}")
    return "\n".join(lines)


def _agreed(values: Iterable[_T]) -> _T | None:
    """The value that all ``values`` equal; None where they differ, or there are none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None

"""The names of ``torch.profiler._memory_profiler``, over memprof's columns.

Code that uses torch's private module can import these instead. What names or describes one thing
(a key, a category, the schemas of an event) is torch's own. The rest are views: an object is made
when it is asked for, and an operator event is fetched from the profiler's result by walking its
tree again. What differs is listed in docs/dataflow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch.profiler import _memory_profiler
from torch.profiler._memory_profiler import (
    Action,
    Category,
    CategoryDict,
    CategoryElement,
    DataFlowEdge,
    Key,
    SchemaMatcher,
    TensorKey,
    _Storage,
    extract_gradients,
    extract_parameters,
    get_scopes,
)

from memprof.profiler.model import Profile

from . import _torch_compat as compat
from .categories import NUMBER_OF
from .columns import EventColumns
from .corrections import ALL_RULES, Rule
from .export import export_timeline, raw_timeline, timeline_points, write_html, write_json
from .graph import FREED, MUTATED, Graph, build_graph
from .lines import events_by_number
from .profile import DataFlowProfile
from .read import read_events


class OpTree(_memory_profiler.OpTree):
    """The events of a profiler run and the columns that are made of them."""

    def __init__(self, result: Any, *, skip_compiler: bool = True) -> None:
        self.result = result
        self.skip_compiler = skip_compiler
        self._root_nodes = compat.event_tree(result)

    @cached_property
    def columns(self) -> EventColumns:
        return read_events(self.result, skip_compiler=self.skip_compiler)

    @property
    def sorted_nodes(self) -> tuple[Any, ...]:
        return tuple(sorted(self.dfs(), key=lambda e: int(e.start_time_ns)))

    @cached_property
    def keys(self) -> list[TensorKey]:
        """A ``TensorKey`` for each row of the key table."""
        k, devices = self.columns.keys, self.columns.devices
        rows = zip(*(c.tolist() for c in (k.id, k.allocation, k.ptr, k.device)), strict=True)
        return [
            TensorKey(devices[d], id, _Storage(ptr % (1 << 64), allocation))
            for id, allocation, ptr, d in rows
        ]

    @cached_property
    def row_of(self) -> dict[TensorKey, int]:
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def leaf_events(self) -> list[Any]:
        """The event of each leaf, by row of the leaf table."""
        numbers = self.columns.leaves.event.tolist()
        # A leaf that a replay added has no event.
        rows = {number: i for i, number in enumerate(numbers) if number >= 0}
        out: list[Any] = [None] * len(numbers)
        for number, event, _ in events_by_number(self.columns, set(rows)):
            out[rows[number]] = event
        return out


class SizeMap(_memory_profiler.SizeMap):
    """The bytes of each storage, by its key."""

    def __init__(self, op_tree: OpTree) -> None:
        self._op_tree = op_tree

    @cached_property
    def _values(self) -> dict[TensorKey, int]:  # type: ignore[override]
        return dict(zip(self._op_tree.keys, self._op_tree.columns.keys.size.tolist(), strict=True))


class DataFlowNode(_memory_profiler.DataFlowNode):
    """A node of the data-flow graph."""

    def __init__(self, graph: DataFlowGraph, node: int) -> None:
        self._of = graph
        self._node = node

    @property
    def _event(self) -> Any:  # type: ignore[override]
        return self._of._op_tree.leaf_events[int(self._of.graph.leaf[self._node])]

    @cached_property
    def _edges(self) -> dict[TensorKey, DataFlowEdge]:  # type: ignore[override]
        g, keys = self._of.graph, self._of._op_tree.keys
        out = {}
        for e in range(int(g.bounds[self._node]), int(g.bounds[self._node + 1])):
            version = int(g.version[e]) if g.version[e] >= 0 else None
            mutated = bool(g.flags[e] & MUTATED) if not g.flags[e] & FREED else None
            out[keys[int(g.edge_key[e])]] = DataFlowEdge(version, mutated)
        return out

    @property
    def start_time(self) -> int:
        leaves = self._of._op_tree.columns.leaves
        return int(leaves.start[self._of.graph.leaf[self._node]])


class DataFlowGraph:
    """The data-flow graph of a run: which node reads, makes and releases which version."""

    def __init__(self, op_tree: OpTree, graph: Graph | None = None) -> None:
        self._op_tree = op_tree
        self.graph = build_graph(op_tree.columns) if graph is None else graph

    @cached_property
    def flow_nodes(self) -> tuple[DataFlowNode, ...]:
        return tuple(DataFlowNode(self, n) for n in range(len(self.graph)))

    @property
    def leaf_events(self) -> tuple[Any, ...]:
        events = self._op_tree.leaf_events
        return tuple(events[i] for i in self.graph.leaf.tolist())

    def validate(self) -> None:
        """Raise ``InvalidDataFlow`` where the trace contradicts itself."""
        self.graph.validate()

    def lookup(self, key: TensorKey) -> int:
        """The last version of a storage; 0 for one that is not in the graph."""
        row = self._op_tree.row_of.get(key)
        if row is None:
            return 0
        return int(self.graph.first_value[row + 1] - self.graph.first_value[row]) - 1


class _ColumnCategories(CategoryDict):
    """Categories of a profile; what is set by hand comes first."""

    def __init__(self, profile: DataFlowProfile, op_tree: OpTree) -> None:
        super().__init__()
        self._profile = profile
        self._op_tree = op_tree

    def get(self, key: Key, version: int) -> Category | None:
        if not isinstance(key, TensorKey):
            return None
        found = super().get(key, version) if key.id in self._values else None
        if found is not None:
            return found
        row = self._op_tree.row_of.get(key)
        number = 0 if row is None else NUMBER_OF[self._profile.category(row, version)]
        return Category(number) if number else None


class MemoryProfile:
    """A memory profile under torch's names.

    Args:
        result: a ``_ProfilerResult``, or a profiler that has stopped.
        memprof_profile: memprof's own profile of the same process.
        rules: memprof's corrections; ``()`` gives torch's categories exactly.

    Raises:
        TypeError, ValueError: ``result`` is no profiler result, or has not stopped.
    """

    def __init__(
        self,
        result: Any,
        *,
        memprof_profile: Profile | None = None,
        rules: Iterable[Rule] = ALL_RULES,
    ) -> None:
        self._op_tree = OpTree(result)
        self.profile = DataFlowProfile(
            self._op_tree.columns, rules=rules, memprof_profile=memprof_profile
        )
        self._op_tree.columns = self.profile.columns  # with what replays added
        self._data_flow_graph = DataFlowGraph(self._op_tree, self.profile.graph)
        self._size_map = SizeMap(self._op_tree)
        self._categories: CategoryDict = _ColumnCategories(self.profile, self._op_tree)

    @cached_property
    def timeline(self) -> tuple[tuple[int, Action, tuple[Key, int], int], ...]:
        """(time in ns or -1, action, (key, version), bytes), by time and action."""
        t, keys = self.profile.changes, self._op_tree.keys
        plain = [Key(d) for d in self._op_tree.columns.devices]
        actions = {a.value: a for a in Action}
        columns = t.time, t.action, t.key, t.device, t.version, t.size
        rows = zip(*(c.tolist() for c in columns), strict=True)
        return tuple(
            (time, actions[action], (keys[key] if key >= 0 else plain[device], version), size)
            for time, action, key, device, version, size in rows
        )

    def _is_gradient(self, key: TensorKey, version: int) -> bool:
        return self._categories.get(key, version) is Category.GRADIENT

    def _category_snapshot(self) -> dict[tuple[TensorKey, int], Category | None]:
        p, keys = self.profile, self._op_tree.keys
        rank = p.columns.keys.rank
        values = np.flatnonzero(p.torch_categories.present[p.graph.value_key])
        values = values[np.argsort(rank[p.graph.value_key[values]], kind="stable")]
        key, version = p.graph.value_key[values].tolist(), p.graph.value_version[values].tolist()
        named = ((keys[k], v) for k, v in zip(key, version, strict=True))
        return {(k, v): self._categories.get(k, v) for k, v in named}


class MemoryProfileTimeline:
    """Exports of a memory profile under torch's names."""

    def __init__(self, memory_profile: MemoryProfile) -> None:
        self._memory_profile = memory_profile
        self.categories = memory_profile._categories

    @property
    def timeline(self) -> tuple[tuple[int, Action, tuple[Key, int], int], ...]:
        return self._memory_profile.timeline

    def _of(self, export: Callable[[DataFlowProfile, str], Any], device: str, none: Any) -> Any:
        profile = self._memory_profile.profile
        return export(profile, str(device)) if str(device) in profile.devices else none

    def _coalesce_timeline(self, device_str: str) -> tuple[list[int], list[list[int]]]:
        """Times (µs) and bytes by category; both empty for a device without events."""
        found: tuple[list[int], list[list[int]]] = self._of(timeline_points, device_str, ([], []))
        return found

    def export_memory_timeline(self, path: str | Path, device_str: str) -> None:
        """Write ``[times, bytes by category]`` as JSON."""
        write_json(path, self._coalesce_timeline(device_str))

    def export_memory_timeline_raw(self, path: str | Path, device_str: str) -> None:
        """Write ``[[time, action, bytes, category], ...]`` as JSON."""
        write_json(path, self._of(raw_timeline, device_str, []))

    def export_memory_timeline_html(
        self,
        path: str | Path,
        device_str: str,
        figsize: tuple[int, int] = (20, 12),
        title: str | None = None,
    ) -> None:
        """Write a page with a picture. It scales with the window: ``figsize`` is not used."""
        write_html(self._memory_profile.profile, path, str(device_str), title)


__all__ = [
    "Action",
    "Category",
    "CategoryDict",
    "CategoryElement",
    "DataFlowEdge",
    "DataFlowGraph",
    "DataFlowNode",
    "Key",
    "MemoryProfile",
    "MemoryProfileTimeline",
    "OpTree",
    "SchemaMatcher",
    "SizeMap",
    "TensorKey",
    "export_timeline",
    "extract_gradients",
    "extract_parameters",
    "get_scopes",
]

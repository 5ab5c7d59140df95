"""Names of ``torch.profiler._memory_profiler``, torch's private module, over memprof's analysis.

Code that imports from torch's module can import from ``memprof.profiler``. Every class is torch's
own but ``MemoryProfile`` and ``MemoryProfileTimeline``, whose answers are memprof's;
docs/dataflow.md lists the differences.
"""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from torch.profiler._memory_profiler import (
    Action as Action,
    Category as Category,
    CategoryDict as CategoryDict,
    CategoryElement as CategoryElement,
    DataFlowEdge as DataFlowEdge,
    DataFlowGraph as DataFlowGraph,
    DataFlowNode as DataFlowNode,
    Key as Key,
    OpTree as OpTree,
    SchemaMatcher as SchemaMatcher,
    SizeMap as SizeMap,
    TensorKey as TensorKey,
    _Storage,
    extract_gradients as extract_gradients,
    extract_parameters as extract_parameters,
    get_scopes as get_scopes,
)

from .model import Profile
from .sources.trace import (
    DataFlowProfile as DataFlowProfile,
    data_flow_columns,
    data_flow_device as data_flow_device,
    profile_memory as profile_memory,
)
from .sources.trace._torch_compat import kineto_result
from .sources.trace.categories import CATEGORIES
from .sources.trace.read import read_events
from .sources.trace.to_model import POINTS, raw_timeline, timeline_points
from .support.writing import output
from .views.export import export_profile
from .views.report.html import write_report

FORMATS = (".raw.json", ".trace.json", ".json", ".html")


class MemoryProfile:
    """A memory profile of a finished run of ``torch.profiler``, as torch's class of the name has
    it.

    Args:
        result: a ``_ProfilerResult``, or a profiler that has stopped.
        corrections: apply memprof's; without them the categories are torch's exactly.

    Raises:
        TypeError, ValueError: ``result`` is no profiler result, or has not stopped.
    """

    def __init__(
        self,
        result: Any,
        *,
        corrections: bool = True,
    ) -> None:
        self._result = kineto_result(result)
        self.profile = DataFlowProfile(
            read_events(self._result),
            corrections=corrections,
        )

    @cached_property
    def _op_tree(self) -> OpTree:
        return OpTree(self._result)

    @cached_property
    def _data_flow_graph(self) -> DataFlowGraph:
        return DataFlowGraph(self._op_tree)

    @cached_property
    def _size_map(self) -> SizeMap:
        return SizeMap(self._op_tree)

    @cached_property
    def keys(self) -> list[TensorKey]:
        """A ``TensorKey`` for each row of the key table."""
        k, devices = self.profile.columns.keys, self.profile.columns.devices
        rows = zip(*(c.tolist() for c in (k.id, k.allocation, k.ptr, k.device)), strict=True)
        return [
            TensorKey(devices[d], id, _Storage(ptr % (1 << 64), allocation))
            for id, allocation, ptr, d in rows
        ]

    @cached_property
    def timeline(self) -> tuple[tuple[int, Action, tuple[Key, int], int], ...]:
        """(time in ns or -1, action, (key, version), bytes), by time and action."""
        changes, keys = self.profile.changes, self.keys
        unnamed = [Key(d) for d in self.profile.columns.devices]
        columns = (
            changes.time,
            changes.action,
            changes.key,
            changes.device,
            changes.version,
            changes.size,
        )
        rows = zip(*(c.tolist() for c in columns), strict=True)
        return tuple(
            (time, Action(action), (keys[key] if key >= 0 else unnamed[device], version), size)
            for time, action, key, device, version, size in rows
        )

    @cached_property
    def _categories(self) -> CategoryDict:
        found = CategoryDict()
        for (key, version), category in self._category_snapshot().items():
            if category is not None:
                found.set_by_version(key, version, category)
        return found

    def _category_snapshot(self) -> dict[tuple[TensorKey, int], Category | None]:
        profile, graph = self.profile, self.profile.graph
        values = np.flatnonzero(profile.counted[graph.value_key])
        rank = profile.columns.keys.rank[graph.value_key[values]]
        found: dict[tuple[TensorKey, int], Category | None] = {}
        for value in values[np.argsort(rank, kind="stable")].tolist():
            row, version = int(graph.value_key[value]), int(graph.value_version[value])
            number = CATEGORIES.index(profile.category(row, version))
            found[self.keys[row], version] = Category(number) if number else None
        return found


class MemoryProfileTimeline:
    """Files of a memory profile under torch's names. Of a device without events they are empty."""

    def __init__(self, memory_profile: MemoryProfile) -> None:
        self._profile = memory_profile.profile
        self.timeline = memory_profile.timeline
        self.categories = memory_profile._categories

    def export_memory_timeline(self, path: str | Path, device_str: str) -> None:
        """Write ``[times in µs, bytes by category]`` as JSON."""
        known = str(device_str) in self._profile.devices
        _write_json(path, timeline_points(self._profile, str(device_str)) if known else ([], []))

    def export_memory_timeline_raw(self, path: str | Path, device_str: str) -> None:
        """Write ``[[time in ns, action, bytes, category], ...]`` as JSON."""
        known = str(device_str) in self._profile.devices
        _write_json(path, raw_timeline(self._profile, str(device_str)) if known else [])

    def export_memory_timeline_html(
        self,
        path: str | Path,
        device_str: str,
        figsize: tuple[int, int] = (20, 12),
        title: str | None = None,
    ) -> None:
        """Write a page with a picture. It scales with the window: ``figsize`` is not used."""
        _write_html(self._profile, path, str(device_str), title)


def export_timeline(profile: DataFlowProfile, path: str | Path, device: str) -> None:
    """Write a profile in the format that the path's ending names: ``.json`` (times in µs, bytes by
    category), ``.raw.json`` (changes as time in ns, action, bytes, category), ``.trace.json``
    (counters for Chrome's tracer and Perfetto), ``.html`` (a report).

    The JSON formats take ``.gz`` on top.

    Raises:
        ValueError: the ending names no format, or nothing in the trace is on ``device``.
        ProfileNotWritableError: the file cannot be written; what was there is as it was.
    """
    name = str(path)
    plain = name.removesuffix(".gz")
    if plain.endswith(".raw.json"):
        _write_json(path, raw_timeline(profile, device))
    elif plain.endswith(".trace.json"):
        export_profile(_alone(profile, sys.maxsize), "perfetto", path)
    elif plain.endswith(".json"):
        _write_json(path, timeline_points(profile, device))
    elif name.endswith(".html"):
        _write_html(profile, path, device)
    else:
        raise ValueError(f"{name!r} ends in no known format; there are {', '.join(FORMATS)}")


def _write_html(
    profile: DataFlowProfile, path: str | Path, device: str, title: str | None = None
) -> None:
    profile.device_index(device)
    write_report(_alone(profile), path, device, title=title or f"Memory of {device}")


def _alone(profile: DataFlowProfile, points: int = POINTS) -> Profile:
    origin = profile.columns.begin
    columns = data_flow_columns(profile, origin, points=points)
    return Profile(perf_origin_ns=origin, dataflow=columns)


def _write_json(path: str | Path, content: object) -> None:
    """Write JSON; a path that ends in ``.gz`` is compressed."""
    with output(path) as file:
        file.write(msgspec.json.encode(content))

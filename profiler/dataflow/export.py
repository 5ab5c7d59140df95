"""Files of a trace alone: JSON and raw JSON as torch writes them; counters and pages by way of the
exporters and views of every profile."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from memprof.profiler.export import export_profile
from memprof.profiler.export.tables import pandas
from memprof.profiler.model import Profile
from memprof.profiler.report.html import report_page, write_page
from memprof.profiler.writing import output

from .categories import CATEGORIES
from .columns import Ints
from .corrections import Rule
from .live import by_category, deltas
from .profile import DataFlowProfile
from .replays import ADDED_PTR
from .storages import Action
from .to_model import POINTS, data_flow_columns

FORMATS = (".raw.json", ".trace.json", ".json", ".html")


def export_timeline(profile: DataFlowProfile, path: str | Path, device: str) -> None:
    """Write a profile in the format that the path's ending names: ``.json`` (times, bytes by
    category), ``.raw.json`` (changes as time, action, bytes, category), ``.trace.json`` (counters
    for Chrome's tracer and Perfetto), ``.html`` (a report).

    The JSON formats take ``.gz`` on top.

    Raises:
        ValueError: the ending names no format, or nothing in the trace is on ``device``.
        ProfileNotWritableError: the file cannot be written; what was there is as it was.
    """
    name = str(path)
    plain = name.removesuffix(".gz")
    if plain.endswith(".raw.json"):
        write_json(path, raw_timeline(profile, device))
    elif plain.endswith(".trace.json"):
        export_profile(_alone(profile, sys.maxsize), "perfetto", path, profile.devices)
    elif plain.endswith(".json"):
        write_json(path, timeline_points(profile, device))
    elif name.endswith(".html"):
        write_html(profile, path, device)
    else:
        raise ValueError(f"{name!r} ends in no known format; there are {', '.join(FORMATS)}")


def write_html(
    profile: DataFlowProfile, path: str | Path, device: str, title: str | None = None
) -> None:
    """Write the report of a trace as an HTML page.

    Raises:
        ValueError: nothing in the trace is on ``device``.
        ProfileNotWritableError: as ``export_timeline``.
    """
    profile.device_index(device)
    page = report_page(_alone(profile), device)
    write_page(replace(page, title=title or f"Memory of {device}"), path)


def _alone(profile: DataFlowProfile, points: int = POINTS) -> Profile:
    origin = profile.columns.begin
    return Profile(
        perf_origin_ns=origin, dataflow=data_flow_columns(profile, origin, points=points)
    )


def write_json(path: str | Path, content: object) -> None:
    """Write what JSON can hold; a path that ends in ``.gz`` is compressed."""
    with output(path) as file:
        file.write(msgspec.json.encode(content))


def timeline_points(profile: DataFlowProfile, device: str) -> tuple[list[int], list[list[int]]]:
    """Times (µs) and, at each, bytes by category, as ``export_memory_timeline`` has them.

    A row is a leading 0 and then the categories in the order of ``categories.ORDER``.
    """
    points = by_category(profile, device, us=True)
    table = np.concatenate([np.zeros((len(points.time), 1), np.int64), points.bytes], axis=1)
    return points.time.tolist(), table.tolist()


def raw_timeline(profile: DataFlowProfile, device: str) -> list[tuple[int, int, int, int]]:
    """(time in ns, action, signed bytes, column of ``ORDER``) of every change."""
    index = profile.device_index(device)
    time, column, size = deltas(profile, index)
    changes = profile.changes
    action = changes.action[changes.device == index]
    action = np.repeat(action, 1 + (action == Action.INCREMENT_VERSION))
    return list(zip(time.tolist(), action.tolist(), size.tolist(), column.tolist(), strict=True))


def timeline_to_pandas(profile: DataFlowProfile) -> Any:
    """Make a ``pandas.DataFrame`` with a row for each change of a storage, in order of time.

    Its columns, in ns and bytes, are those of ``columns_of``.

    Raises:
        ImportError: pandas is not installed.
    """
    return pandas().DataFrame(columns_of(profile))


def columns_of(profile: DataFlowProfile) -> dict[str, Any]:
    """All changes as named columns of equal length; what ``timeline_to_pandas`` has.

    ``time_ns`` (-1: before the trace), ``action``, ``device``, ``bytes``, ``tensor_id``,
    ``allocation_id`` and ``address`` (-1: unknown), ``version``, ``category`` and
    ``category_after`` ("unknown" where there is none; they differ only for increments),
    ``rule``, ``module``, ``operator`` and ``name`` (None: unknown), and ``buffers``: the names
    in generated code that the memory has had, in order of time, separated by spaces.
    """
    t, c, keys = profile.changes, profile.corrected, profile.columns.keys
    before, after = profile.change_categories()
    names = np.asarray([c.value for c in CATEGORIES], object)
    actions = np.asarray(["", *(a.name.lower() for a in Action)], object)
    devices = np.asarray([str(d) for d in profile.columns.devices] or [""], object)
    rules = np.asarray([r.name.lower() for r in Rule], object)
    block_ptr = profile.storages.block_ptr
    # No address of its own: a block that `replays.py` added.
    added = (block_ptr <= ADDED_PTR) & (block_ptr > ADDED_PTR - (1 << 40))

    def column(of_keys: Ints, of_blocks: Any = -1) -> Ints:
        blocks = np.broadcast_to(of_blocks, block_ptr.shape)
        return np.concatenate([of_keys, blocks])[t.storage]

    def per_storage(of: Any) -> Any:
        used, inverse = np.unique(t.storage, return_inverse=True)
        return np.asarray([of(i) for i in used.tolist()] or [None], object)[inverse]

    def buffers(storage: int) -> str | None:
        return " ".join(o.buffer for o in profile.owners(storage) if o.buffer) or None

    return {
        "time_ns": t.time,
        "action": actions[t.action],
        "device": devices[t.device],
        "bytes": t.size,
        "tensor_id": column(keys.id),
        "allocation_id": column(keys.allocation),
        "address": column(keys.ptr, np.where(added, -1, block_ptr)),
        "version": t.version,
        "category": names[before],
        "category_after": names[after],
        "rule": rules[c.rule[c.first[t.storage] + t.version]],
        "module": per_storage(profile.module),
        "operator": per_storage(profile.operator),
        "name": per_storage(profile.name),
        "buffers": per_storage(buffers),
    }

"""Tables for pyarrow, DuckDB, pandas and Polars: a folder of Parquet files.

What a row of each is, and columns and units: docs/exports.md."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import IO, Any

from ..attribution import Attribution
from ..errors import ProfileNotWritableError
from ..model import Profile, SourceFrame
from ..trees import call_modes
from ..writing import replacing_all
from .walk import AFTER, Part, Walk

_ROWS = 100_000
"""In a row group: what is held in memory at once."""

_COLUMNS = {
    "calls": "call:int device graph:int label kind program:int mode thread:int start_ns:int "
    "end_ns:int entry_bytes:int peak_bytes:int exit_bytes:int between_bytes:int",
    "events": "device time_ns:int call:int instant:int action block:int delta_bytes:int "
    "live_bytes:int",
    "blocks": "device block:int memory:int nbytes:int category graph:int label buffer "
    "generated_line:int node op module file line:int code fqn outside unattributed",
    "snapshots": "time_ns:int kind name device tensor_bytes:int tensors:int allocated_bytes:int "
    "reserved_bytes:int resident_bytes:int",
    "operations": "operation:int parent:int path lane start_ns:int end_ns:int failed:bool "
    "tensor_bytes_before:int tensor_bytes_after:int device bytes_before:int bytes_after:int "
    "peak_bytes:int",
    "account": "device purpose detail nbytes:int blocks:int compiled:bool modules nodes file "
    "line:int code",
}
"""Of each table, with their types, text where nothing is said; in the order in which tables are
written: of blocks after the events, when all are known."""

TABLES = tuple(_COLUMNS)

Rows = Iterator[tuple[Any, ...]]


def write_parquet(profile: Profile, folder: str | os.PathLike[str], part: Part) -> None:
    """Write the tables into a folder, which is made where it is not there; all or none, those
    without rows too. See ``export_profile``.

    Raises:
        ProfileNotWritableError: also if a sum of the profile's figures does not fit 64 bits.
    """
    pa, _ = pyarrow()
    walks = {d: part.walk(profile, d) for d in part.devices}
    tables = (
        *(_calls(profile, walks), _events(walks), _blocks(profile, walks), _snapshots(profile)),
        *(_operations(profile), _account(profile, part.devices)),
    )
    paths = table_paths(folder)
    made = not os.path.exists(folder)
    with contextlib.suppress(OSError):  # `replacing_all` says it in our words.
        os.makedirs(folder, exist_ok=True)
    try:
        with replacing_all(paths, "the tables", folder) as files:
            for fd, columns, rows in zip(files, _COLUMNS.values(), tables, strict=True):
                with open(fd, "wb", closefd=False) as file:
                    _write(file, columns.split(), rows)
    except (OverflowError, pa.ArrowInvalid) as e:
        raise ProfileNotWritableError(
            folder, "cannot write the tables: a figure does not fit 64 bits; nothing was changed"
        ) from e
    finally:
        if made:
            with contextlib.suppress(OSError):  # It is not empty: all is well.
                os.rmdir(folder)


def table_paths(folder: str | os.PathLike[str]) -> list[str]:
    """Where the tables of a folder are."""
    return [os.path.join(folder, f"{name}.parquet") for name in TABLES]


def _calls(profile: Profile, walks: dict[str, Walk]) -> Rows:
    calls, modes = profile.calls, call_modes(profile)
    graphs = {g.id: g for g in profile.graphs}
    for device, walk in walks.items():
        b = walk.timeline.bytes_over_time()
        for k in walk.calls:
            g = graphs[calls.graph[k]]
            yield (
                k, device, g.id, g.label, g.kind.value, calls.program[k], modes[k].value,
                calls.thread[k], calls.start_ns[k], calls.end_ns[k], b.entry[k], b.peak[k],
                b.exit[k], b.between[k],
            )  # fmt: skip


def _events(walks: dict[str, Walk]) -> Rows:
    for device, walk in walks.items():
        live = 0
        # Memory goes in the description in which it came, so that sums by block are right.
        came: dict[int, list[int]] = {}
        for moment in walk:
            at = (device, moment.time_ns, moment.call, moment.instant)
            edge = moment.instant in (0, AFTER)
            freed, allocated = ("leave", "enter") if edge else ("free", "alloc")
            if moment.change.reuse:
                freed, allocated = "reuse_from", "reuse_as"
            for block in moment.change.freed:
                live -= block.nbytes
                yield (*at, freed, came[block.memory].pop(), -block.nbytes, live)
            for block in moment.change.allocated:
                live += block.nbytes
                came.setdefault(block.memory, []).append(block.number)
                yield (*at, allocated, block.number, block.nbytes, live)


def _blocks(profile: Profile, walks: dict[str, Walk]) -> Rows:
    attribution = Attribution(profile)
    graphs = {g.id: g for g in profile.graphs}
    for device, walk in walks.items():
        for block in walk.blocks:
            item = block.item
            site = attribution.site(item.graph, item.storage, item.owner, item.line)
            yield (
                device, block.number, block.memory, block.nbytes, site.category.value,
                site.graph, graphs[site.graph].label, item.owner, item.line, site.node, site.op,
                site.module, *_source(site.frame), site.fqn, site.outside,
                "; ".join(f"{v.value}: {why}" for v, why in site.why.items()) or None,
            )  # fmt: skip


def _snapshots(profile: Profile) -> Rows:
    for s in profile.tracker.snapshots if profile.tracker else ():
        for device, m in s.devices.items():
            about = (s.time_ns, s.kind.value, s.name, device, m.tensor_bytes, m.tensors)
            yield (*about, m.allocated_bytes, m.reserved_bytes, s.resident_bytes)


def _operations(profile: Profile) -> Rows:
    tracker = profile.tracker
    if tracker is None:
        return
    rows = tracker.operation_allocations

    def known(value: int) -> int | None:
        return None if value < 0 else value

    for i in range(len(rows)):
        for device, memory in rows.memory.items() or ((None, None),):
            yield (
                i, known(rows.parent[i]), tracker.path(rows.summary[i]),
                tracker.metadata.lanes[rows.lane[i]].name, rows.start_ns[i],
                known(rows.end_ns[i]), rows.failed[i], known(rows.tensor_bytes_before[i]),
                known(rows.tensor_bytes_after[i]), device,
                known(memory.before[i]) if memory else None,
                known(memory.after[i]) if memory else None,
                known(memory.peak[i]) if memory else None,
            )  # fmt: skip


def _account(profile: Profile, devices: Sequence[str]) -> Rows:
    for a in profile.accounts:
        if a.device not in devices:
            continue
        for r in a.rows:
            yield (
                a.device, r.purpose.value, r.detail or None, r.nbytes, r.count, r.compiled,
                r.modules or None, r.nodes or None, *_source(r.frame),
            )  # fmt: skip
        for name, _, nbytes in a.other_parts():
            yield (a.device, name, None, nbytes, *(None,) * 7)


def _source(frame: SourceFrame | None) -> tuple[str | None, int | None, str | None]:
    return (frame.file, frame.line, frame.code) if frame else (None, None, None)


def _write(file: IO[bytes], columns: Sequence[str], rows: Rows) -> None:
    pa, pq = pyarrow()
    text = pa.dictionary(pa.int32(), pa.string())
    types = {"int": pa.int64(), "bool": pa.bool_(), "": text}
    schema = pa.schema(
        [(name, types[kind]) for name, _, kind in (c.partition(":") for c in columns)]
    )
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        first = True
        while (batch := list(islice(rows, _ROWS))) or first:
            first = False
            values = list(zip(*batch, strict=True)) or [()] * len(columns)
            arrays = [
                _text(pa, v).dictionary_encode() if field.type == text else pa.array(v, field.type)
                for v, field in zip(values, schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _text(pa: Any, values: Sequence[str | None]) -> Any:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        # A path that is not UTF-8 reaches Python as lone surrogates.
        plain = (v and v.encode("utf-8", "backslashreplace").decode() for v in values)
        return pa.array(plain, pa.string())


def pyarrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        ImportError: they are not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(
            "writing Parquet needs pyarrow: pip install 'memprof[parquet]', "
            "or choose another format"
        ) from error

"""One snapshot: the live tensors and what allocators and the system say, put together."""

from __future__ import annotations

import dataclasses
import time

from memprof.profiler.model import MemorySnapshot, SnapshotKind, TensorInfo, TrackedDevice
from memprof.profiler.sources.allocator.referrers import Referrers

from . import naming
from .operations import OperationLog
from .sources import Sources
from .tensors import Pause, TensorStorage


def take_snapshot(
    operations: OperationLog, kind: SnapshotKind, name: str, pause: Pause
) -> MemorySnapshot:
    """Returns what the sources of ``operations`` say now, and which of these run; ``pause`` is
    called between slices of work, to let other threads run."""
    begin = time.perf_counter_ns()
    at, sources = operations.clock(), operations.sources
    running = [operations.path(o.summary) for o in operations.running()]
    complete = sources.tensors.look(operations.made_in(), pause)
    pause()
    sources.tensors.recheck(pause)
    pause()
    storages = sources.tensors.largest(pause)
    largest = [_described(s, operations) for s in storages]
    if kind in _NAMED:
        _find_holders(largest, storages, operations)
    pause()
    resident = sources.process.resident()
    devices = _devices(sources, resident)
    nbytes, tensors = sources.tensors.sums()
    return MemorySnapshot(
        time_ns=at,
        kind=kind,
        name=name,
        total_bytes=nbytes,
        total_tensors=tensors,
        resident_bytes=resident[0] if resident is not None else None,
        children=sources.process.children(),
        pinned=sources.accelerators.pinned(),
        devices=devices,
        largest=tuple(largest),
        operations=tuple(dict.fromkeys(running)),
        complete=complete,
        took_ns=time.perf_counter_ns() - begin,
    )


_NAMED = frozenset({SnapshotKind.END, SnapshotKind.OUT_OF_MEMORY})
"""Snapshots in which it is asked who refers to tensors: it takes a second for a million objects, in
one piece, which nobody wants at each of the others."""


def _find_holders(
    largest: list[TensorInfo], storages: list[TensorStorage], operations: OperationLog
) -> None:
    """Say of each that has no name who refers to it."""
    asked = [
        (i, tensor)
        for i, s in enumerate(storages)
        if not largest[i].name and (tensor := s.tensor()) is not None
    ]
    try:
        chains = Referrers().chains([tensor for _, tensor in asked], [asked, *asked])
    except Exception as e:
        operations.report(f"asking who refers to tensors failed: {type(e).__name__}: {e}")
        return
    for (i, _), chain in zip(asked, chains, strict=True):
        largest[i] = dataclasses.replace(largest[i], holder=chain)


def _devices(sources: Sources, resident: tuple[int, int] | None) -> dict[str, TrackedDevice]:
    now, highest = resident if resident is not None else (None, None)
    nbytes, tensors = dict(sources.tensors.nbytes), dict(sources.tensors.tensors)
    found = {
        "cpu": TrackedDevice(
            allocated_bytes=sources.process.allocated(),
            reserved_bytes=now,
            peak_bytes=highest,
            total_bytes=sources.process.total,
            highest_bytes=now,
        ),
        **sources.accelerators.full(),
    }
    for name, count in tensors.items():
        memory = found.get(name, TrackedDevice())
        found[name] = dataclasses.replace(memory, tensor_bytes=nbytes.get(name, 0), tensors=count)
    return {name: found[name] for name in ["cpu", *sorted(found.keys() - {"cpu"})]}


def _described(storage: TensorStorage, operations: OperationLog) -> TensorInfo:
    made_in = operations.path(storage.operation)
    found = TensorInfo((), "", storage.device, storage.nbytes, storage.tensors, operation=made_in)
    tensor = storage.tensor()
    if tensor is None:
        return found
    try:
        found = dataclasses.replace(found, **dataclasses.asdict(naming.origin(tensor)))
    except Exception as e:
        operations.report(f"naming a tensor failed: {type(e).__name__}: {e}")
    try:
        return dataclasses.replace(
            found,
            shape=tuple(map(int, tensor.shape)),
            dtype=str(tensor.dtype),
            requires_grad=bool(tensor.requires_grad),
        )
    except Exception as e:  # a subclass has properties of its own
        operations.report(f"describing a tensor failed: {type(e).__name__}: {e}")
        return found

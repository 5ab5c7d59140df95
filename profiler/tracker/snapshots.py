"""One snapshot: the live tensors and what allocators and the system say, put together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable

from memprof.profiler.device.referrers import Referrers
from memprof.profiler.model import DeviceMemory, MemorySnapshot, SnapshotKind, TensorInfo

from . import naming
from .sources import Sources
from .tensors import KnownStorage, Pause, no_pause


def take_snapshot(
    sources: Sources,
    kind: SnapshotKind,
    name: str = "",
    *,
    operation: int = -1,
    running: Iterable[str] = (),
    path: Callable[[int], str] = lambda summary: "",
    report: Callable[[str], None] = lambda text: None,
    pause: Pause | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> MemorySnapshot:
    """A snapshot of now.

    Args:
        sources: what to ask.
        kind, name: why.
        operation: summary of the operation in which new tensors were made, -1 if unknown.
        running: paths of the operations that run.
        path: from the position of an operation's summary to its name path.
        report: told what went wrong, in words.
        pause: called between slices of work, to let other threads run.
        clock: of ``time_ns``.
    """
    begin = time.perf_counter_ns()
    at = clock()
    pause = pause or no_pause
    complete = sources.tensors.look(operation, pause)
    pause()
    sources.tensors.recheck(pause)
    pause()
    storages = sources.tensors.largest(pause)
    largest = tuple(_described(s, path(s.operation), report) for s in storages)
    if kind in _NAMED:
        largest = _with_holders(largest, storages, report)
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
        resident_bytes=resident,
        devices=devices,
        largest=largest,
        operations=tuple(running),
        complete=complete,
        took_ns=time.perf_counter_ns() - begin,
    )


_NAMED = frozenset({SnapshotKind.END, SnapshotKind.OUT_OF_MEMORY})
"""Snapshots in which it is asked who refers to tensors: it takes a second for a million objects, in
one piece, which nobody wants at each of the others."""


def _with_holders(
    largest: tuple[TensorInfo, ...], storages: list[KnownStorage], report: Callable[[str], None]
) -> tuple[TensorInfo, ...]:
    """The same with who refers to each that has no name."""
    asked = [
        (i, tensor)
        for i, s in enumerate(storages)
        if not largest[i].name and (tensor := s.tensor()) is not None
    ]
    found = list(largest)
    try:
        chains = Referrers().chains([tensor for _, tensor in asked], [asked, *asked])
    except Exception as e:
        report(f"asking who refers to tensors failed: {type(e).__name__}: {e}")
        return largest
    for (i, _), chain in zip(asked, chains, strict=True):
        found[i] = dataclasses.replace(found[i], holder=chain)
    return tuple(found)


def _devices(sources: Sources, resident: int | None) -> dict[str, DeviceMemory]:
    if (allocated := sources.cpu_count.allocated()) is None:
        allocated = sources.process.allocated()
    totals = dict(sources.tensors.totals)
    sources.accelerators.mps = any(name.startswith("mps") for name in totals)
    found = {
        "cpu": DeviceMemory(
            allocated_bytes=allocated,
            reserved_bytes=resident,
            peak_bytes=sources.process.highest(),
            total_bytes=sources.process.total,
            highest_bytes=resident,
        ),
        **sources.accelerators.full(),
    }
    for name, total in totals.items():
        memory = found.get(name, DeviceMemory())
        found[name] = dataclasses.replace(memory, tensor_bytes=total.nbytes, tensors=total.tensors)
    return {name: found[name] for name in ["cpu", *sorted(found.keys() - {"cpu"})]}


def _described(storage: KnownStorage, path: str, report: Callable[[str], None]) -> TensorInfo:
    found = TensorInfo((), "", storage.device, storage.nbytes, storage.tensors, operation=path)
    tensor = storage.tensor()
    if tensor is None:
        return found
    known = naming.TensorOrigin()
    try:
        known = naming.origin(tensor)
    except Exception as e:
        report(f"naming a tensor failed: {type(e).__name__}: {e}")
    try:
        return dataclasses.replace(
            found,
            shape=tuple(map(int, tensor.shape)),
            dtype=str(tensor.dtype),
            requires_grad=bool(tensor.requires_grad),
            **dataclasses.asdict(known),
        )
    except Exception as e:  # a subclass has properties of its own
        report(f"describing a tensor failed: {type(e).__name__}: {e}")
        return found

"""One snapshot: the live tensors and what allocators and the system say, put together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from memprof.profiler.model import DeviceMemory, MemorySnapshot, SnapshotKind, TensorInfo

from . import naming
from ._torch_compat import CpuAllocatorCount
from .memory import Accelerators, ProcessMemory
from .tensors import KnownStorage, LiveTensors, Pause


class Photographer:
    """Takes snapshots.

    Args:
        tensors: the live tensors.
        process, accelerators, cpu_count: the other sources.
        paths: from the position of an operation's summary to its name path.
        report: told what went wrong, in words.
    """

    def __init__(
        self,
        tensors: LiveTensors,
        process: ProcessMemory,
        accelerators: Accelerators,
        cpu_count: CpuAllocatorCount,
        paths: Callable[[int], str],
        report: Callable[[str], None],
    ) -> None:
        self._tensors = tensors
        self._process = process
        self._accelerators = accelerators
        self._cpu_count = cpu_count
        self._paths = paths
        self._report = report

    def take(
        self,
        kind: SnapshotKind,
        name: str = "",
        *,
        operation: int = -1,
        running: Iterable[str] = (),
        pause: Pause | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> MemorySnapshot:
        """A snapshot of now.

        Args:
            kind, name: why.
            operation: summary of the operation in which new tensors were made, -1 if unknown.
            running: paths of the operations that run.
            pause: called between slices of work, to let other threads run.
            clock: of ``time_ns``.
        """
        begin = time.perf_counter_ns()
        at = clock()
        pause = pause or _no_pause
        complete = self._tensors.look(operation, pause)
        pause()
        self._tensors.recheck(pause)
        pause()
        largest = tuple(self._describe(s) for s in self._tensors.largest(pause))
        pause()
        resident = self._process.resident()
        devices = self._devices(resident)
        nbytes, tensors = self._tensors.sums()
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

    def _devices(self, resident: int | None) -> dict[str, DeviceMemory]:
        counting = self._cpu_count.counting
        allocated = self._cpu_count.allocated() if counting else self._process.allocated()
        totals = dict(self._tensors.totals)
        self._accelerators.mps = any(name.startswith("mps") for name in totals)
        allocators = self._accelerators.full()
        names = ["cpu", *sorted(n for n in {*totals, *allocators} if n != "cpu")]
        found = {}
        for name in names:
            total = totals.get(name)
            tensor_bytes, count = (total.nbytes, total.tensors) if total else (0, 0)
            if name == "cpu":
                found[name] = DeviceMemory(
                    tensor_bytes,
                    count,
                    allocated,
                    resident,
                    self._process.highest(),
                    self._process.total,
                    highest_bytes=resident,
                )
                continue
            a = allocators.get(name)
            if a is None:
                found[name] = DeviceMemory(tensor_bytes, count)
                continue
            found[name] = DeviceMemory(
                tensor_bytes,
                count,
                a.allocated,
                a.reserved,
                a.peak,
                a.total,
                a.pools,
                a.allocated,
            )
        return found

    def _describe(self, storage: KnownStorage) -> TensorInfo:
        path = self._paths(storage.operation)
        unknown = TensorInfo(
            (), "", storage.device, storage.nbytes, storage.tensors, operation=path
        )
        tensor = storage.tensor()
        if tensor is None:
            return unknown
        try:
            known = naming.origin(tensor)
        except Exception as e:
            self._report(f"naming a tensor failed: {type(e).__name__}: {e}")
            known = None
        try:
            return TensorInfo(
                shape=tuple(map(int, tensor.shape)),
                dtype=str(tensor.dtype),
                device=storage.device,
                nbytes=storage.nbytes,
                tensors=storage.tensors,
                requires_grad=bool(tensor.requires_grad),
                operation=path,
                name=known.name if known else "",
                graph=known.graph if known else None,
                node=known.node if known else None,
                category=known.category if known else None,
            )
        except Exception as e:  # a subclass has properties of its own
            self._report(f"describing a tensor failed: {type(e).__name__}: {e}")
            return unknown


def _no_pause() -> None:
    pass

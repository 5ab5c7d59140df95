"""Describes what allocators and the operating system say of memory, and what each source cannot
see.

Note [No call to the driver]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The tracker's thread runs beside the user's, which may be capturing a CUDA graph. In torch's
default capture mode an unsafe call from *any* thread invalidates the capture, so nothing here
asks the driver, for free memory for example: counters of torch's allocator only. For the same
reason, and because of forked children, a device that is not in use yet is not touched.

Note [Costly questions]
~~~~~~~~~~~~~~~~~~~~~~~
glibc's ``mallinfo2`` takes 0.3 µs, or 6 ms where 100 000 chunks are free, and holds the lock of
malloc meanwhile; the snapshot of the CUDA allocator, which has the pools, holds the GIL for each
block. ``Seldom`` asks such a thing again only when 1000 times its last cost has gone by. In between
the last answer is given for pools, which change slowly, and none for malloc.

Note [The highest resident size]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``getrusage`` has it for 0.8 µs, but Linux keeps that mark over ``exec``: a worker that is started
by a process that has loaded a model begins with the model's bytes in it. ``VmHWM`` of
``/proc/self/status`` is this program's own and takes 20 µs. So the first is asked where it says no
more than the second at first.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from memprof.profiler.host import physical_memory
from memprof.profiler.model import DeviceMemory, PoolMemory, Source

from . import _torch_compat
from ._torch_compat import CpuAllocatorCount
from .tensors import LiveTensors

if sys.platform != "win32":
    import resource

MAX_BLOCKS = 200
"""Blocks of the CUDA allocator beyond which pools are not read: it holds the GIL for 12 µs each
(measured on the simulated device)."""


class Seldom:
    """Ask ``question`` no more often than its cost allows, see Note [Costly questions]."""

    def __init__(
        self, question: Callable[[], Any], clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._question = question
        self._clock = clock
        self._next = 0
        self.last: Any = None

    def ask(self) -> Any:
        begin = self._clock()
        if begin < self._next:
            return None
        self.last = self._question()
        end = self._clock()
        self._next = end + 1000 * (end - begin)
        return self.last


_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2.split())


def _mallinfo2() -> Callable[[], int] | None:
    """Bytes that malloc has handed out, as a function; None where the C library cannot say."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):
        return None
    function.restype = _Mallinfo2

    def allocated() -> int:
        info = function()
        return int(info.uordblks + info.hblkhd)

    return allocated


class ProcessMemory:
    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
        self._statm: int | None = None
        question = _mallinfo2()
        self._malloc = Seldom(question) if question is not None else None
        self.total = physical_memory()

    def close(self) -> None:
        """Give back the file; after a fork it is still the parent's that it reads."""
        file, self._statm = self._statm, -1
        if file is not None and file >= 0:
            with contextlib.suppress(OSError):  # A program that becomes a daemon has closed it.
                os.close(file)

    def resident(self) -> int | None:
        """Resident bytes, 1.4 µs; None where there is no /proc, and after ``close``."""
        try:
            if self._statm is None:
                self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._statm, 128, 0).split()[1]) * self._page
        except (OSError, ValueError, IndexError):
            return None

    def highest(self) -> int | None:
        """The highest that ``resident`` ever was, see Note [The highest resident size]; None where
        the system cannot say."""
        return self._own_highest() if self._inherited else self._rusage_highest()

    @functools.cached_property
    def _inherited(self) -> bool:
        rusage, own = self._rusage_highest(), self._own_highest()
        return rusage is not None and own is not None and rusage > own

    def _own_highest(self) -> int | None:
        try:
            status = Path("/proc/self/status").read_bytes()
        except OSError:
            return None
        found = re.search(rb"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else None

    def _rusage_highest(self) -> int | None:
        if sys.platform == "win32":
            return None
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def children(self) -> tuple[int, ...]:
        """Resident bytes of each process that this one has started; () where there is no /proc."""
        found = []
        for thread in Path("/proc/self/task").glob("*/children"):
            with contextlib.suppress(OSError):  # It has just ended.
                for child in thread.read_text().split():
                    statm = Path(f"/proc/{child}/statm").read_text()
                    found.append(int(statm.split()[1]) * self._page)
        return tuple(found)

    def allocated(self) -> int | None:
        return self._malloc.ask() if self._malloc is not None else None


class Accelerators:
    """The allocators of the accelerators that are in use. ``mps`` says whether tensors on MPS were
    seen: torch cannot say whether it is in use, and asking for its memory would initialise it."""

    def __init__(self) -> None:
        self.mps = False
        self._pools = Seldom(_cuda_pools)

    def brief(self) -> dict[str, tuple[int, int]]:
        """By device: bytes handed out and the highest ever; for the edges of operations."""
        found = {}
        for i, counters in _cuda_counters():
            allocated = counters["allocated_bytes"]["all"]
            found[f"cuda:{i}"] = (allocated["current"], allocated["peak"])
        if self.mps:
            now = torch.mps.current_allocated_memory()
            found["mps:0"] = (now, now)
        return found

    def pinned(self) -> PoolMemory | None:
        """Pinned host memory that torch has from the system; None where it has asked for none."""
        counters = torch.cuda.memory.host_memory_stats_as_nested_dict()  # None before CUDA starts.
        if not counters.get("num_host_alloc"):
            return None
        has, uses = (counters[name]["current"] for name in ("allocated_bytes", "active_bytes"))
        return PoolMemory("pinned", has, uses if _torch_compat.PINNED_COMES_BACK else None)

    def full(self) -> dict[str, DeviceMemory]:
        found = {}
        blocks = 0
        for i, counters in _cuda_counters():
            allocated = counters["allocated_bytes"]["all"]
            blocks += sum(counters[k]["all"]["current"] for k in ("active", "inactive_split"))
            found[f"cuda:{i}"] = DeviceMemory(
                allocated_bytes=allocated["current"],
                reserved_bytes=counters["reserved_bytes"]["all"]["current"],
                peak_bytes=allocated["peak"],
                # torch has read the properties when it initialised the device.
                total_bytes=torch.cuda.get_device_properties(i).total_memory,
                highest_bytes=allocated["current"],
            )
        if found and blocks <= MAX_BLOCKS:
            self._pools.ask()
        for name, pools in (self._pools.last or {}).items():
            if name in found:
                found[name] = dataclasses.replace(found[name], pools=tuple(pools))
        if self.mps:
            now = torch.mps.current_allocated_memory()
            found["mps:0"] = DeviceMemory(
                allocated_bytes=now,
                reserved_bytes=torch.mps.driver_allocated_memory(),
                highest_bytes=now,
            )
        return found


def _cuda_counters() -> Iterator[tuple[int, dict[str, Any]]]:
    """The allocator's counters of each device on which it has ever handed out memory."""
    if _torch_compat.cuda_in_use():
        for i in range(torch.cuda.device_count()):
            counters = _torch_compat.cuda_statistics(i)
            if counters.get("allocated_bytes", {}).get("all", {}).get("peak"):
                yield i, counters


def _cuda_pools() -> dict[str, list[PoolMemory]]:
    sums: dict[tuple[int, tuple[Any, ...]], list[int]] = {}
    for segment in _torch_compat.cuda_segments():
        pool = tuple(segment["segment_pool_id"])
        if pool == (0, 0):
            continue  # the common pool
        reserved_allocated = sums.setdefault((segment["device"], pool), [0, 0])
        reserved_allocated[0] += segment["total_size"]
        reserved_allocated[1] += segment["allocated_size"]
    found: dict[str, list[PoolMemory]] = {}
    for (device, pool), (reserved, allocated) in sorted(sums.items()):
        name = f"({', '.join(map(str, pool))})"
        found.setdefault(f"cuda:{device}", []).append(PoolMemory(name, reserved, allocated))
    return found


@dataclass(slots=True)
class Sources:
    """All that a tracker asks. ``no_cpu_count`` is why torch's CPU allocations are not counted;
    ``scanned``, whether tensors of before the tracker's start were looked for."""

    tensors: LiveTensors
    process: ProcessMemory = field(default_factory=ProcessMemory)
    accelerators: Accelerators = field(default_factory=Accelerators)
    cpu_count: CpuAllocatorCount = field(default_factory=CpuAllocatorCount)
    no_cpu_count: str = "off; the setting cpu_allocator switches it on"
    scanned: bool = True


def described(sources: Sources, *, compiled: bool) -> tuple[Source, ...]:
    """The sources as every record says them."""
    linux = sys.platform == "linux"
    # Name, whether it is used, what it sees, what it does not; and why it is not used.
    found = (
        (
            "python tensors",
            True,
            "storages that a live Python tensor refers to, each once: parameters, gradients, "
            "optimizer state, whatever a variable or container holds",
            "memory without a Python object: activations that eager autograd holds, workspaces, "
            "what lives shorter than from one look to the next"
            + ("" if sources.scanned else "; tensors made before the tracker started"),
            "",
        ),
        (
            "resident memory",
            linux,
            "the physical memory of the process: tensors, Python, libraries",
            "what part of it is tensors; memory that was freed and not yet returned to the system "
            "still counts; the kernel's count lags by some hundred KiB",
            "read from /proc, which this system does not have",
        ),
        (
            "child processes",
            linux,
            "the physical memory of each process that this one has started: workers of DataLoaders",
            "what these have started; what several processes share counts in each",
            "read from /proc, which this system does not have",
        ),
        (
            "malloc",
            linux,
            "bytes that glibc's malloc has handed out, CPU tensors and everything else",
            "Python's small objects; not asked where that takes long (many free chunks)",
            "glibc only",
        ),
        (
            "torch CPU allocator",
            not sources.no_cpu_count,
            "every CPU tensor's bytes, those that only autograd holds included, since the start",
            "what was allocated before the tracker started",
            sources.no_cpu_count,
        ),
        (
            "CUDA allocator",
            _torch_compat.cuda_in_use(),
            "bytes handed out and reserved, the highest mark, private pools",
            "memory that does not come from torch's allocator: contexts, NCCL, other libraries",
            "CUDA was not in use",
        ),
        (
            "pinned host memory",
            _torch_compat.cuda_in_use(),
            "what torch's allocator of it has from the system, rounded up to powers of two, and "
            "what of that is in use",
            "what libraries pin themselves; before torch 2.13 what is in use",
            "CUDA was not in use",
        ),
        (
            "MPS allocator",
            sources.accelerators.mps,
            "bytes handed out and reserved",
            "a highest mark",
            "no tensor on MPS was seen",
        ),
        (
            "compiled graphs",
            compiled,
            "node, category and name of tensors that memprof compiled; every byte inside calls",
            "what other backends compiled, and eager code",
            "memprof compiled nothing in this process",
        ),
    )
    return tuple(
        Source(name, used, sees, misses if used else why) for name, used, sees, misses, why in found
    )

"""Readings of memory from allocators and the operating system.

Note [No call to the driver]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The tracker's thread runs beside the user's, which may be capturing a CUDA graph. In torch's
default capture mode an unsafe call from *any* thread invalidates the capture, so nothing here
asks the driver, for free memory for example: counters of torch's allocator only. For the same
reason, and because of forked children, a device that is not in use yet is not touched.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from memprof.profiler.model import TrackedDevice
from memprof.profiler.support.host import physical_memory, resident_bytes

from . import _torch_compat
from .tensors import LiveTensors

if sys.platform != "win32":
    import resource

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
    """The physical memory of this process, as the system counts it, and what malloc counts."""

    def __init__(self) -> None:
        self._malloc = _mallinfo2()
        self.total = physical_memory()

    def resident(self) -> tuple[int, int] | None:
        """Resident bytes now, and the highest ever of this program; None where there is no
        /proc."""
        now = resident_bytes()
        if now is None:
            return None
        highest = _own_highest() if self._inherited else _rusage_highest()
        return now, max(now, highest)

    @functools.cached_property
    def _inherited(self) -> bool:
        """Tells whether ``getrusage`` has more than this program ever had: Linux keeps that over
        ``exec``, so a worker begins with that of the process that started it. ``_own_highest`` is
        right, and takes forty times as long."""
        return _rusage_highest() > _own_highest()

    def allocated(self) -> int | None:
        """Bytes that malloc has handed out; None where the C library cannot say. It takes 0.3 µs,
        or 6 ms where 100 000 chunks are free."""
        return None if self._malloc is None else self._malloc()


def _rusage_highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _own_highest() -> int:
    found = re.search(rb"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_bytes(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


class Accelerators:
    """The allocators of the CUDA devices that are in use."""

    def brief(self) -> dict[str, tuple[int, int]]:
        """By device: bytes handed out and the highest ever; for the edges of operations."""
        found = {}
        for i, counters in _cuda_counters():
            allocated = counters["allocated_bytes"]["all"]
            found[f"cuda:{i}"] = (allocated["current"], allocated["peak"])
        return found

    def full(self) -> dict[str, TrackedDevice]:
        """By device: all that a snapshot has of its allocator."""
        found = {}
        for i, counters in _cuda_counters():
            allocated = counters["allocated_bytes"]["all"]
            found[f"cuda:{i}"] = TrackedDevice(
                allocated_bytes=allocated["current"],
                reserved_bytes=counters["reserved_bytes"]["all"]["current"],
                peak_bytes=allocated["peak"],
                # torch has read the properties when it initialised the device.
                total_bytes=torch.cuda.get_device_properties(i).total_memory,
                highest_bytes=allocated["current"],
            )
        return found


def _cuda_counters() -> Iterator[tuple[int, dict[str, Any]]]:
    """The allocator's counters of each device on which it has ever handed out memory."""
    if _torch_compat.cuda_in_use():
        for i in range(torch.cuda.device_count()):
            counters = _torch_compat.cuda_statistics(i)
            if counters.get("allocated_bytes", {}).get("all", {}).get("peak"):
                yield i, counters


@dataclass(slots=True)
class Sources:
    """All that a tracker asks."""

    tensors: LiveTensors
    process: ProcessMemory = field(default_factory=ProcessMemory)
    accelerators: Accelerators = field(default_factory=Accelerators)

"""Readings of memory from allocators and the operating system.

Note [No call to the driver]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The tracker's thread runs beside the user's, which may be capturing a CUDA graph. In torch's
default capture mode an unsafe call from *any* thread invalidates the capture, so nothing here
asks the driver, for free memory for example: counters of torch's allocator only. For the same
reason, and because of forked children, a device that is not in use yet is not touched.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import torch

from memprof.profiler.model import TrackedDevice
from memprof.profiler.sources.allocator.totals import Counters, device_counters, total_memory
from memprof.profiler.support.host import physical_memory, resident_bytes

if sys.platform != "win32":
    import resource


class ProcessMemory:
    """The physical memory of this process, as the system counts it."""

    def __init__(self) -> None:
        self.total = physical_memory()

    def resident(self) -> tuple[int, int] | None:
        """Resident bytes now, and the highest ever of this program; None where there is no
        /proc."""
        now = resident_bytes()
        if now is None:
            return None
        return now, max(now, _own_highest() if self._inherited else _rusage_highest())

    @functools.cached_property
    def _inherited(self) -> bool:
        """Tells whether ``getrusage`` has more than this program ever had: Linux keeps that over
        ``exec``, so a worker begins with that of the process that started it. ``_own_highest`` is
        right, and takes 22 µs at each edge of an operation, where ``getrusage`` takes 1."""
        return _rusage_highest() > _own_highest()


def _rusage_highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _own_highest() -> int:
    found = re.search(rb"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_bytes(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def allocated_and_highest() -> dict[str, tuple[int, int]]:
    """Bytes that the allocator of each CUDA device in use has handed out, and the highest ever, by
    device; for the edges of operations."""
    return {f"cuda:{d}": (allocated, peak) for d, (allocated, _, peak, _) in _cuda_counters()}


def device_memory() -> dict[str, TrackedDevice]:
    """All that a snapshot has of the allocator of each CUDA device in use, by device."""
    return {
        f"cuda:{device}": TrackedDevice(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            peak_bytes=peak,
            total_bytes=total_memory(device),
            highest_bytes=allocated,
        )
        for device, (allocated, reserved, peak, _) in _cuda_counters()
    }


def _cuda_counters() -> list[tuple[int, Counters]]:
    """Counters of the allocator of each device on which it has ever handed out memory."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    found = device_counters(devices=range(torch.cuda.device_count()))
    return [(device, counters) for device, counters in found if counters[2]]

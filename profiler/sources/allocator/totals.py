"""Totals that the allocator counts, with no history and no look at any block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from memprof.profiler.model import DeviceAccount, DeviceTotals, Outside

from ._torch_compat import has_context, memory_stats


def named(device: int, steps: int = 0) -> DeviceAccount:
    """An account of a device that says what it is, after so many optimizer steps."""
    return DeviceAccount(
        device=f"cuda:{device}",
        name=torch.cuda.get_device_name(device),
        total=torch.cuda.get_device_properties(device).total_memory,
        steps=steps,
    )


def most(stats: dict[str, Any], what: str) -> int:
    """The most bytes ``reserved``, ``allocated`` (handed out), ``requested`` (that blocks had been
    asked for) or ``active``, by the allocator's statistics."""
    return int(stats.get(f"{what}_bytes.all.peak", 0))


def peaks(stats: dict[str, Any]) -> tuple[int, int]:
    """The most bytes reserved, and handed out."""
    return most(stats, "reserved"), most(stats, "allocated")


def counted(steps: int) -> list[DeviceAccount]:
    """Totals alone, of an allocator that keeps no history, the device with most first."""
    found = []
    for device in range(torch.cuda.device_count()):
        account = named(device, steps)
        account.reserved, account.most_allocated = peaks(torch.cuda.memory_stats(device))
        account.unexplained = account.reserved
        account.notes.append(
            f"the allocator {torch.cuda.get_allocator_backend()} keeps no history: what its memory "
            "was for is not known"
        )
        found.append(account)
    return sorted((a for a in found if a.reserved), key=lambda a: -a.reserved)


def outside(device: int) -> list[Outside]:
    """Bytes used on a device outside of torch's allocator now, as one figure; empty where CUDA does
    not say."""
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:
        return []
    nbytes = total - free - torch.cuda.memory_reserved(device)
    what = "CUDA context, NCCL, other libraries and processes"
    source = "measured when the session ended: used on the device, less what the allocator had"
    return [Outside(what, nbytes, False, source)] if nbytes > 0 else []


def counters() -> dict[str, dict[str, int]]:
    """Peaks that torch's statistics have now, in bytes, by device."""
    stats = {f"cuda:{d}": torch.cuda.memory_stats(d) for d in range(torch.cuda.device_count())}
    names = ("allocated", "reserved", "active")
    return {device: {name: most(of, name) for name in names} for device, of in stats.items()}


Counters = tuple[int, int, int, int]
"""Bytes that the allocator of a device counts: allocated, reserved, the most of each."""


def counters_of(device: int) -> Counters:
    """Counters of a device's allocator, in 12 µs, since torch makes dictionaries of all of them."""
    stats = memory_stats(device)
    allocated = stats["allocated_bytes"]["all"]
    reserved = stats["reserved_bytes"]["all"]
    return allocated["current"], reserved["current"], allocated["peak"], reserved["peak"]


def devices_in_use() -> list[int]:
    """CUDA devices of which this process has a context."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    return [d for d in range(torch.cuda.device_count()) if has_context(d)]


def device_counters(
    read: Callable[[int], Counters] = counters_of, devices: Sequence[int] = ()
) -> list[tuple[int, Counters]]:
    """Devices, by default those in use, and what their allocators count now, by ``read``. Empty
    where one does not count (``CUDAPluggableAllocator``), or CUDA has failed. Hot."""
    try:
        return [(d, read(d)) for d in devices or devices_in_use()]
    except (RuntimeError, LookupError):
        return []


def device_totals(found: Iterable[tuple[int, Counters]] | None = None) -> list[DeviceTotals]:
    """Totals of the devices of which something is, or was, reserved, by their counters; by default
    those of now."""
    found = device_counters() if found is None else found
    return [DeviceTotals(f"cuda:{d}", total_memory(d), *of) for d, of in found if of[-1]]


@functools.cache
def total_memory(device: int) -> int:
    """Bytes that a device has; torch reads them when it initialises the device."""
    return int(torch.cuda.get_device_properties(device).total_memory)

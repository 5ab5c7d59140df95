"""Totals that the allocator counts, with no history and no look at any block."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memprof.profiler.model import DeviceAccount, DeviceTotals, Outside

from ._torch_compat import has_context


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


def device_totals() -> list[DeviceTotals]:
    """Totals of the allocators of CUDA devices now, in some 12 µs a device that it uses. Empty
    where one does not count (``CUDAPluggableAllocator``), CUDA is not in use, or it has failed."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    with contextlib.suppress(RuntimeError):
        found = []
        for device in filter(has_context, range(torch.cuda.device_count())):
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            reserved, allocated = (
                stats.get(name, {}).get("all", {}) for name in ("reserved_bytes", "allocated_bytes")
            )
            if highest := reserved.get("peak", 0):
                total = torch.cuda.get_device_properties(device).total_memory
                now = allocated.get("current", 0), reserved.get("current", 0)
                most_of_each = allocated.get("peak", 0), highest
                found.append(DeviceTotals(f"cuda:{device}", total, *now, *most_of_each))
        return found
    return []

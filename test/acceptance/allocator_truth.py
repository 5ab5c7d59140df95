"""What the allocator itself says happened inside each compiled call: the ground truth.

Independent of memprof: torch.profiler reports every allocation and release of the CPU
allocator with its signed size; the window of a compiled call is a range put around
``CompiledFxGraph.__call__``, which is where AOTAutograd enters Inductor's code.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._C._profiler import _EventType
from torch._inductor.output_code import CompiledFxGraph
from torch.profiler import ProfilerActivity, record_function

_WINDOW = "allocator truth: compiled call"


@dataclass(frozen=True)
class CallTruth:
    """One call of one compiled graph.

    Attributes:
        entry_bytes: of the distinct storages among its arguments when it began.
        peak_delta: the most bytes above those of its beginning that it held at an instant.
        allocated: bytes of all allocations added up.
    """

    entry_bytes: int
    peak_delta: int
    allocated: int


def measure(step: Callable[[], object]) -> list[CallTruth]:
    """Runs ``step`` once and returns its compiled calls, in the order in which they began."""
    entries: list[int] = []
    with _windows(entries):
        events, allocations = _watched(step)
    windows = sorted((e.start_time_ns, e.end_time_ns) for e in events if e.name == _WINDOW)
    assert len(windows) == len(entries), "the profiler lost a window"
    calls = []
    for entry, (start, end) in zip(entries, windows, strict=True):
        live = peak = allocated = 0
        for at, size in allocations:
            if start <= at <= end:
                live += size
                peak = max(peak, live)
                allocated += max(size, 0)
        calls.append(CallTruth(entry, peak, allocated))
    return calls


def allocator_peak(step: Callable[[], object]) -> tuple[int, int]:
    """Runs ``step`` once and returns the most bytes above its start, and those at its end."""
    gc.collect()
    _, allocations = _watched(step)
    live = peak = 0
    for _, size in allocations:
        live += size
        peak = max(peak, live)
    return peak, live


def _watched(step: Callable[[], object]) -> tuple[list[Any], list[tuple[int, int]]]:
    """The profiler's events of a step, and instant and signed size of each allocation in order."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    events = list(_flat(prof.profiler.kineto_results.experimental_event_tree()))
    allocations = [e for e in events if e.tag == _EventType.Allocation]
    return events, sorted((e.start_time_ns, e.extra_fields.alloc_size) for e in allocations)


@contextmanager
def _windows(entries: list[int]) -> Iterator[None]:
    original = CompiledFxGraph.__call__

    def call(self: CompiledFxGraph, inputs: Any) -> Any:
        # Sizes only: a reference kept here would keep inputs from being released inside.
        entries.append(
            sum(
                {
                    x.untyped_storage()._cdata: x.untyped_storage().nbytes()
                    for x in inputs
                    if isinstance(x, torch.Tensor)
                }.values()
            )
        )
        with record_function(_WINDOW):
            return original(self, inputs)

    with mock.patch.object(CompiledFxGraph, "__call__", call):
        yield


def _flat(events: Any) -> Iterator[Any]:
    stack = list(events)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)

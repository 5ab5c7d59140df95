"""Statistics of PyTorch operators: ``with tracker.track_pytorch_ops():``.

``torch.profiler`` is underneath: it keeps an event for each operator until the window ends, and
then its own statistics (``key_averages()``) are added up. It follows the thread that opened the
window and the autograd threads that work for it. ``key_averages()`` lists device kernels beside the
operators that launched them; here are operators only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memprof.profiler.model import (
    OperatorCall,
    OperatorRecord,
    OperatorStatistics,
    Span,
)
from memprof.profiler.support.process_hooks import ForkSafeLock

from . import _torch_compat

MAX_OPERATORS = 5_000
MAX_WINDOWS = 1_000
MAX_SEQUENCE = 10_000
"""Most single calls that a record has: all of them are written again after each window."""
OTHER = "(other operators)"
_NOT_OPERATORS = ("autograd::engine::", "torch::autograd::")
_TIMES = ("cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total")
_BYTES = (
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "device_memory_usage",
    "self_device_memory_usage",
)
_FIGURES = (
    "count",
    "cpu_ns",
    "self_cpu_ns",
    "device_ns",
    "self_device_ns",
    "cpu_bytes",
    "self_cpu_bytes",
    "device_bytes",
    "self_device_bytes",
)
"""Fields of ``OperatorStatistics`` for the calls, _TIMES and _BYTES."""

Shapes = tuple[tuple[int, ...], ...]


class OperatorTable:
    """Operator statistics added up over windows, the last ``MAX_WINDOWS`` in ``windows``."""

    def __init__(self) -> None:
        self.windows: list[Span] = []
        self._sequence: list[OperatorCall] = []
        # A signal's handler can write the record while this thread adds a window.
        self._lock = ForkSafeLock()
        # By operator: calls, _TIMES in ns, and _BYTES.
        self._sums: dict[str, list[int]] = {}

    def add(
        self, averages: Sequence[Any], window: Span, calls: Sequence[OperatorCall], most: int
    ) -> None:
        """Add a window, by ``key_averages()`` of its profiler, and single calls, in order, of which
        the last ``most`` of all windows are kept."""
        with self._lock:
            for a in averages:
                if is_operator(a.key) and _torch_compat.ran_on_host(a):
                    times = [round(1000 * getattr(a, name)) for name in _TIMES]
                    figures = [a.count, *times, *(getattr(a, name) for name in _BYTES)]
                    self._add(a.key, figures)
            self.windows.append(window)
            del self.windows[:-MAX_WINDOWS]
            if calls:
                self._sequence = [*self._sequence, *calls][-most:]

    def _add(self, name: str, figures: list[int]) -> None:
        if name not in self._sums and len(self._sums) >= MAX_OPERATORS:
            name = OTHER
        sums = self._sums.setdefault(name, [0] * len(figures))
        for i, value in enumerate(figures):
            sums[i] += value

    def record(self) -> OperatorRecord:
        """The statistics, highest self host time first."""
        with self._lock:
            found = [
                OperatorStatistics(name, **dict(zip(_FIGURES, sums, strict=True)))
                for name, sums in self._sums.items()
            ]
            found.sort(key=lambda s: (-s.self_cpu_ns, s.name))
            return OperatorRecord(list(self.windows), found, list(self._sequence))


def as_shapes(shapes: Any) -> Shapes:
    """Input shapes as tuples; () for an input that has none, or that is a list of tensors."""
    return tuple(
        tuple(s) if all(isinstance(n, int) for n in s) else ()
        for s in shapes or ()
        if s is not None
    )


def is_operator(name: str) -> bool:
    """``aten::mm``, an operator of the user's library, or a kernel that Inductor generated."""
    return ("::" in name and not name.startswith(_NOT_OPERATORS)) or name.startswith("triton_")


def calls_in(events: Sequence[Any], window: Span, most: int) -> list[OperatorCall]:
    """The last ``most`` calls of operators, at least 1, among the ``events`` of a profiler, in
    order of their start."""
    found = [e for e in events if is_operator(e.name) and _torch_compat.ran_on_host(e)]
    return [
        OperatorCall(
            e.name,
            start_ns=window.start_ns + round(1000 * e.time_range.start),
            depth=_depth(e),
            cpu_ns=round(1000 * e.cpu_time_total),
            self_cpu_bytes=e.self_cpu_memory_usage,
            self_device_bytes=e.self_device_memory_usage,
            shapes=as_shapes(e.input_shapes),
        )
        for e in sorted(found, key=lambda e: e.time_range.start)[-most:]
    ]


def _depth(event: Any) -> int:
    """Number of operators that an event is inside of."""
    depth = 0
    while (event := event.cpu_parent) is not None:
        depth += is_operator(event.name)
    return depth


_ONE_WINDOW = threading.Lock()


class OperatorWindow:
    """One ``with tracker.track_pytorch_ops():``. ``table`` is asked at the end, too; it is None
    where statistics go nowhere."""

    def __init__(
        self,
        table: Callable[[], OperatorTable | None],
        report: Callable[[str], None],
        memory: bool,
        sequence: int,
    ) -> None:
        self._table = table
        self._report = report
        self._memory = memory
        self._sequence = sequence
        self._profile: Any = None
        self._start = 0

    def __enter__(self) -> OperatorWindow:
        if torch.compiler.is_compiling() or self._table() is None:
            return self
        if _torch_compat.profiling() or not _ONE_WINDOW.acquire(blocking=False):
            self._report("track_pytorch_ops: another profiler is on, so nothing was measured")
            return self
        try:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            profile = torch.profiler.profile(
                activities=kinds,
                record_shapes=self._sequence > 0,
                profile_memory=self._memory,
            )
            profile.start()
        except Exception as e:
            _ONE_WINDOW.release()
            self._report(f"track_pytorch_ops: torch.profiler did not start: {e}")
            return self
        self._profile = profile
        self._start = time.perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        window = Span(self._start, time.perf_counter_ns())
        try:
            profile.stop()
            if (table := self._table()) is not None:
                calls: list[OperatorCall] = []
                if self._sequence:
                    calls = calls_in(profile.events(), window, self._sequence)
                table.add(profile.key_averages(), window, calls, self._sequence)
        except Exception as e:
            self._report(f"track_pytorch_ops: no statistics: {type(e).__name__}: {e}")
        finally:
            _ONE_WINDOW.release()

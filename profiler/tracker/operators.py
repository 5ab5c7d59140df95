"""Statistics of PyTorch operators: ``with tracker.track_pytorch_ops():``.

``torch.profiler`` is underneath: inside the window an operator pays less than 1 µs for its event,
all events of a window are kept until it ends, and then torch turns each into Python objects,
which takes some 50 µs, 160 µs with shapes and memory. Keep windows short, a few steps. Outside
there is no cost. It follows the thread that opened the window and the autograd threads that work
for it; one window can be open at a time, and none beside another profiler of torch's.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from memprof.profiler.model import OperatorRecord, OperatorShapes, OperatorStatistics, Span

from . import _torch_compat

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_OPERATORS = 5_000
MAX_SHAPES = 16
"""Combinations of input shapes that are kept of each operator."""
MAX_WINDOWS = 1_000
OTHER = "(other operators)"
_NOT_OPERATORS = ("autograd::engine::", "torch::autograd::")

Shapes = tuple[tuple[int, ...], ...]
_FIGURES = (
    *("cpu_ns", "self_cpu_ns", "device_ns", "self_device_ns"),
    *("cpu_bytes", "self_cpu_bytes", "device_bytes", "self_device_bytes"),
)


@dataclass(slots=True)
class _Sums:
    """What adds up: ``numbers`` are the count and ``_FIGURES``."""

    numbers: list[int] = field(default_factory=lambda: [0] * (1 + len(_FIGURES)))
    shapes: dict[Shapes, list[int]] = field(default_factory=dict)


class OperatorTable:
    """Operator statistics added up over windows."""

    def __init__(self) -> None:
        self.windows: list[Span] = []
        self.peak_cpu_bytes: int | None = None
        self._lock = threading.Lock()
        self._sums: dict[str, _Sums] = {}

    def add(self, averages: Any, totals: list[tuple[str, int]], window: Span) -> None:
        """Add a finished window.

        Args:
            averages: ``key_averages(group_by_input_shape=...)``.
            totals: allocations in order, see ``_torch_compat.memory_totals``.
            window: when it was.
        """
        with self._lock:
            for event in averages:
                if is_operator(event.key):
                    self._add(event)
            live = peak = 0
            for device, nbytes in totals:
                if device == "cpu":
                    live += nbytes
                    peak = max(peak, live)
            self.peak_cpu_bytes = max(self.peak_cpu_bytes or 0, peak)
            self.windows.append(window)
            del self.windows[:-MAX_WINDOWS]

    def _add(self, event: Any) -> None:
        name = event.key
        if name not in self._sums and len(self._sums) >= MAX_OPERATORS:
            name = OTHER
        sums = self._sums.setdefault(name, _Sums())
        added = (
            event.count,
            _ns(event.cpu_time_total),
            _ns(event.self_cpu_time_total),
            _ns(event.device_time_total),
            _ns(event.self_device_time_total),
            event.cpu_memory_usage,
            event.self_cpu_memory_usage,
            event.device_memory_usage,
            event.self_device_memory_usage,
        )
        sums.numbers = [a + int(b) for a, b in zip(sums.numbers, added, strict=True)]
        shapes = as_shapes(event.input_shapes)
        if shapes:
            figures = sums.shapes.setdefault(shapes, [0, 0, 0])
            for i, value in enumerate((added[0], added[2], added[4])):
                figures[i] += int(value)
            if len(sums.shapes) > 16 * MAX_SHAPES:
                ranked = sorted(sums.shapes.items(), key=lambda item: -item[1][0])
                sums.shapes = dict(ranked[: 4 * MAX_SHAPES])

    def record(self) -> OperatorRecord:
        """The statistics, highest self host time first."""
        with self._lock:
            found = []
            for name, sums in self._sums.items():
                ranked = sorted(sums.shapes.items(), key=lambda item: (-item[1][0], item[0]))
                kept = tuple(OperatorShapes(s, *times) for s, times in ranked[:MAX_SHAPES])
                others = sums.numbers[0] - sum(s.count for s in kept)
                count, *figures = sums.numbers
                found.append(
                    OperatorStatistics(
                        name,
                        count,
                        **dict(zip(_FIGURES, figures, strict=True)),
                        shapes=kept,
                        other_shapes=others if sums.shapes else 0,
                    )
                )
            found.sort(key=lambda s: (-s.self_cpu_ns, s.name))
            return OperatorRecord(list(self.windows), found, self.peak_cpu_bytes)


def is_operator(name: str) -> bool:
    """Whether a profiler's event is an operator: ``aten::mm``, one of the user's library, or a
    kernel that Inductor generated."""
    return ("::" in name and not name.startswith(_NOT_OPERATORS)) or name.startswith("triton_")


def as_shapes(shapes: Any) -> Shapes:
    """Input shapes as tuples; () for an input that has none, or that is a list of tensors."""
    return tuple(
        tuple(s) if all(isinstance(n, int) for n in s) else ()
        for s in shapes or ()
        if s is not None
    )


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


_ONE_WINDOW = threading.Lock()


class OperatorWindow:
    """One ``with tracker.track_pytorch_ops():``.

    Args:
        table: where the statistics go, asked at the end; None if they go nowhere.
        report: told why nothing is measured, where that is so.
        shapes, memory: whether to record input shapes and bytes.
    """

    def __init__(
        self,
        table: Callable[[], OperatorTable | None],
        report: Callable[[str], None],
        shapes: bool,
        memory: bool,
    ) -> None:
        self._table = table
        self._report = report
        self._shapes = shapes
        self._memory = memory
        self._profile: Any = None
        self._start = 0

    def __enter__(self) -> OperatorWindow:
        if torch.compiler.is_compiling() or self._table() is None:
            return self
        if _torch_compat.profiling() or not _ONE_WINDOW.acquire(blocking=False):
            self._report("track_pytorch_ops: another profiler is on, so nothing was measured")
            return self
        try:
            profile = _torch_compat.kineto_profile(
                device=_torch_compat.cuda_in_use(), shapes=self._shapes, memory=self._memory
            )
            profile.__enter__()
        except Exception as e:
            _ONE_WINDOW.release()
            self._report(f"track_pytorch_ops: torch.profiler did not start: {e}")
            return self
        self._profile = profile
        self._start = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            return
        window = Span(self._start, time.perf_counter_ns())
        try:
            profile.__exit__(None, None, None)
            table = self._table()
            if table is not None:
                totals = _torch_compat.memory_totals(profile) if self._memory else []
                table.add(profile.key_averages(group_by_input_shape=self._shapes), totals, window)
        except Exception as e:
            self._report(f"track_pytorch_ops: no statistics: {type(e).__name__}: {e}")
        finally:
            _ONE_WINDOW.release()

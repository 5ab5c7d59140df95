"""Statistics of PyTorch operators: ``with tracker.track_pytorch_ops():``.

``torch.profiler`` is underneath: it keeps an event for each operator until the window ends, and
then they are added up. It follows the thread that opened the window and the autograd threads that
work for it.

Note [Figures of operator calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The same figures as ``torch.profiler``'s ``key_averages()``, from its raw events, in a tenth of the
time: torch makes a Python object with forty attributes of each event first.

* An event is inside another of its thread if its interval is; what is *self* excludes the events
  directly inside.
* An event that is the only one inside another of its name is the same call, recorded twice.
* Bytes are those of all allocations and releases between its start and its end, of any thread.
* Device time is that of the kernels it and what is inside it launched.
* An asynchronous event (it ends on another thread) has no inside, and nothing is its own.

One difference: ``key_averages()`` lists device kernels as entries beside the operators that
launched them; ours are operators only.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from memprof.profiler.model import OperatorRecord, OperatorShapes, OperatorStatistics, Span
from memprof.profiler.process_hooks import ForkSafeLock

from . import _torch_compat
from ._torch_compat import HostEvent, MemoryEvent, Shapes

MAX_OPERATORS = 5_000
MAX_SHAPES = 16
"""Combinations of input shapes that are kept of each operator."""
MAX_WINDOWS = 1_000
OTHER = "(other operators)"
_NOT_OPERATORS = ("autograd::engine::", "torch::autograd::")


class Figures(NamedTuple):
    """Describes what one call took, what is inside it included; ``self_``: excluded."""

    cpu_ns: int
    self_cpu_ns: int
    device_ns: int
    self_device_ns: int
    cpu_bytes: int
    self_cpu_bytes: int
    device_bytes: int
    self_device_bytes: int


def calls(
    events: Sequence[HostEvent], memory: Sequence[MemoryEvent]
) -> Iterator[tuple[HostEvent, Figures]]:
    """Each call with its figures, in order of thread and start, asynchronous ones last; ``memory``
    is in order of time. See Note [Figures of operator calls]."""
    nested = sorted(
        (e for e in events if not e.asynchronous), key=lambda e: (e.thread, e.start_ns, -e.end_ns)
    )
    around, call = _nesting(nested)
    taken = _Bytes(memory)
    totals = [[e.end_ns - e.start_ns, 0, *taken.between(e.start_ns, e.end_ns)] for e in nested]
    own = [list(t) for t in totals]
    for i in reversed(range(len(nested))):  # what is inside comes after what it is inside of
        totals[call[i]][1] += nested[i].kernels_ns
        own[call[i]][1] += nested[i].kernels_ns
        if call[i] == i and around[i] >= 0:
            outer = call[around[i]]
            totals[outer][1] += totals[i][1]
            for k in (0, 2, 3):
                own[outer][k] -= totals[i][k]
    for i, event in enumerate(nested):
        if call[i] == i:
            (cpu, device, host_bytes, device_bytes), mine = totals[i], own[i]
            times = cpu, mine[0], device, mine[1]
            yield event, Figures(*times, host_bytes, mine[2], device_bytes, mine[3])
    for event in events:
        if event.asynchronous:
            host_bytes, device_bytes = taken.between(event.start_ns, event.end_ns)
            took = event.end_ns - event.start_ns
            yield event, Figures(took, 0, 0, 0, host_bytes, 0, device_bytes, 0)


def _nesting(events: list[HostEvent]) -> tuple[list[int], list[int]]:
    """Of each event the position of the one directly around it, -1 if there is none, and of the
    one that stands for its call."""
    around, inside = [-1] * len(events), [0] * len(events)
    open_: list[int] = []
    thread = None
    for i, event in enumerate(events):
        if event.thread != thread:
            thread = event.thread
            open_.clear()
        while open_:
            end_ns = events[open_[-1]].end_ns
            if event.start_ns < end_ns and event.end_ns <= end_ns:
                break
            open_.pop()
        if open_:
            around[i] = open_[-1]
            inside[open_[-1]] += 1
        open_.append(i)
    call = list(range(len(events)))
    for i, outer in enumerate(around):
        if outer >= 0 and inside[outer] == 1 and events[outer].name == events[i].name:
            call[i] = call[outer]
    return around, call


class _Bytes:
    def __init__(self, memory: Sequence[MemoryEvent]) -> None:
        self._times = [m.time_ns for m in memory]
        self._host = list(accumulate((m.nbytes if m.on_host else 0 for m in memory), initial=0))
        self._device = list(accumulate((0 if m.on_host else m.nbytes for m in memory), initial=0))

    def between(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Bytes on the host and on devices, both ends included."""
        first = bisect_left(self._times, start_ns)
        last = bisect_right(self._times, end_ns, first)
        return self._host[last] - self._host[first], self._device[last] - self._device[first]


class OperatorTable:
    """Operator statistics added up over windows: ``added`` of them, the last ``MAX_WINDOWS`` in
    ``windows``."""

    def __init__(self) -> None:
        self.windows: list[Span] = []
        self.added = 0
        self.peak_cpu_bytes: int | None = None
        # A signal's handler can write the record while this thread adds a window.
        self._lock = ForkSafeLock()
        # By operator: calls, and the sums of their figures; and by input shapes as well: calls,
        # host and device time.
        self._sums: dict[str, list[int]] = {}
        self._shapes: dict[str, dict[Shapes, list[int]]] = {}

    def add(self, events: Sequence[HostEvent], memory: Sequence[MemoryEvent], window: Span) -> None:
        with self._lock:
            for event, figures in calls(events, memory):
                if is_operator(event.name):
                    self._add(event, figures)
            live = accumulate((m.nbytes for m in memory if m.on_host), initial=0)
            self.peak_cpu_bytes = max(self.peak_cpu_bytes or 0, max(live))
            self.added += 1
            self.windows.append(window)
            del self.windows[:-MAX_WINDOWS]

    def _add(self, event: HostEvent, figures: Figures) -> None:
        name = event.name
        if name not in self._sums and len(self._sums) >= MAX_OPERATORS:
            name = OTHER
        sums = self._sums.setdefault(name, [0] * (1 + len(figures)))
        for i, value in enumerate((1, *figures)):
            sums[i] += value
        if event.shapes:
            shapes = self._shapes.setdefault(name, {})
            of_shapes = shapes.setdefault(event.shapes, [0, 0, 0])
            of_shapes[0] += 1
            of_shapes[1] += figures.self_cpu_ns
            of_shapes[2] += figures.self_device_ns
            if len(shapes) > 16 * MAX_SHAPES:
                ranked = sorted(shapes.items(), key=lambda item: -item[1][0])
                self._shapes[name] = dict(ranked[: 4 * MAX_SHAPES])

    def record(self) -> OperatorRecord:
        """The statistics, highest self host time first."""
        with self._lock:
            found = []
            for name, (count, *sums) in self._sums.items():
                shapes = self._shapes.get(name, {})
                ranked = sorted(shapes.items(), key=lambda item: (-item[1][0], item[0]))
                kept = tuple(OperatorShapes(s, *times) for s, times in ranked[:MAX_SHAPES])
                others = count - sum(s.count for s in kept) if shapes else 0
                figures = Figures(*sums)._asdict()
                found.append(
                    OperatorStatistics(name, count, **figures, shapes=kept, other_shapes=others)
                )
            found.sort(key=lambda s: (-s.self_cpu_ns, s.name))
            return OperatorRecord(list(self.windows), found, self.peak_cpu_bytes)


def is_operator(name: str) -> bool:
    """``aten::mm``, an operator of the user's library, or a kernel that Inductor generated."""
    return ("::" in name and not name.startswith(_NOT_OPERATORS)) or name.startswith("triton_")


_ONE_WINDOW = threading.Lock()


class OperatorWindow:
    """One ``with tracker.track_pytorch_ops():``. ``table`` is asked at the end, too; it is None
    where statistics go nowhere."""

    def __init__(
        self,
        table: Callable[[], OperatorTable | None],
        report: Callable[[str], None],
        shapes: bool,
        memory: bool,
    ) -> None:
        self._table = table
        self._report = report
        self._wanted = {"shapes": shapes, "memory": memory}
        self._profile: Any = None
        self._start = 0

    def __enter__(self) -> OperatorWindow:
        if torch.compiler.is_compiling() or self._table() is None:
            return self
        if _torch_compat.profiling() or not _ONE_WINDOW.acquire(blocking=False):
            self._report("track_pytorch_ops: another profiler is on, so nothing was measured")
            return self
        try:
            cuda = _torch_compat.cuda_in_use()
            profile = _torch_compat.kineto_profile(device=cuda, **self._wanted)
            profile.__enter__()
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
            profile.__exit__(None, None, None)
            if (table := self._table()) is not None:
                table.add(*_torch_compat.operator_events(profile), window)
        except Exception as e:
            self._report(f"track_pytorch_ops: no statistics: {type(e).__name__}: {e}")
        finally:
            _ONE_WINDOW.release()

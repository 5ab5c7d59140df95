"""Which micro-batches of a step are followed: of many the first and the last.

Note [Micro-batches]
~~~~~~~~~~~~~~~~~~~~
To follow an operation costs more than to simulate it, and a step that accumulates gradients does
the same for each of its micro-batches. So torch's profiler rests from the end of the first backward
to that of the last but one, as many backwards as the step before had, if in that step each of those
between launched nothing that the first or the last had not; what a program does around its
optimizer comes after that. What is launched meanwhile is logged all the same, with its sizes of
products, name, grid and block: it counts as those launches of the first micro-batch that have
these, or of what was followed later, one after the other. What has none like it counts among the
launches of which the work is not known.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memprof.profiler.sources.allocator._torch_compat import wrap_backward
from memprof.simulated_cuda import control

from . import _torch_compat
from .work import Operation, Work

FEWEST = 4
"""Backwards of a step of which some are left out."""


class MicroBatches:
    """Counts backwards, and has the profiler rest for those in the middle of a step."""

    def __init__(self, rest: Callable[[bool], None]) -> None:
        self._rest = rest
        self._rests = False
        self._before = 0
        self._ends: list[int] = []
        self._thread = threading.get_ident()
        self._rests_at = 0
        self._goes_on_at = 0

    def install(self) -> None:
        """Count backwards from now on."""
        wrap_backward(self._around_backward)

    def next_step(self, *, follows: bool) -> None:
        """Begin with the next step, of which some are left out if it is followed. What the one
        before has launched is in the log."""
        if self._rests_at and not self._goes_on_at:
            self._goes_on()
        self._rests = follows and self._were_alike()
        self._before = len(self._ends)
        self._ends = []
        self._thread = threading.get_ident()

    def completed(
        self,
        found: Sequence[tuple[control.Logged, Work | None]],
        operations: Mapping[int, Operation],
    ) -> Iterator[tuple[control.Logged, Work | None]]:
        """Launches with their work, in order, also of those that were left out."""
        if not self._goes_on_at:
            yield from found
            return
        first, whole = Alike(), Alike()
        first.learn(pair for pair in found if pair[0].at < self._rests_at)
        whole.learn(pair for pair in found if not self._rested(pair[0]))
        for record, work in found:
            operation = operations.get(record.operation)
            # A graph's nodes were followed as it was captured.
            if self._rested(record) and not record.operation:
                work = first.work_of(record) or whole.work_of(record) or work
            elif operation is not None and operation.backward >= 0 and not operation.module:
                # Of a pipeline the forward was earlier, and may have been left out.
                before = first.work_of(record)
                if work is not None and before is not None and replace(before, module="") == work:
                    work = before
            yield record, work

    def _rested(self, record: control.Logged) -> bool:
        return bool(self._rests_at <= record.at < self._goes_on_at)

    def _around_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            # Not of a checkpoint, and the profiler rests for one thread.
            if not _torch_compat.in_backward() and threading.get_ident() == self._thread:
                self._backward_ended()
            return result

        return run_backward

    def _backward_ended(self) -> None:
        self._ends.append(time.monotonic_ns())
        if self._rests and len(self._ends) == 1:
            self._rest(True)
            self._rests_at = time.monotonic_ns()
        elif self._rests and len(self._ends) == self._before - 1:
            self._goes_on()

    def _were_alike(self) -> bool:
        if len(self._ends) < FEWEST:
            return False
        launched = [Counter[tuple[Any, ...]]() for _ in (*self._ends, None)]
        for record in control.logged():
            if record.kind < control.EVENT:
                launched[bisect.bisect(self._ends, record.at)][_looks(record)] += 1
        # The first may have more, as forwards of a pipeline, and only others add to gradients.
        followed = launched[0] | launched[-2]
        return all(part and part <= followed for part in launched[1:-2])

    def _goes_on(self) -> None:
        self._goes_on_at = time.monotonic_ns()
        self._rest(False)


class Alike:
    """Work of launches that were followed, for those like them that were not."""

    def __init__(self) -> None:
        self._known: defaultdict[tuple[Any, ...], list[Work]] = defaultdict(list)
        self._asked: Counter[tuple[Any, ...]] = Counter()

    def learn(self, pairs: Iterable[tuple[control.Logged, Work | None]]) -> None:
        """Learn the work of launches, in their order."""
        for record, work in pairs:
            if work is not None:
                self._known[_looks(record)].append(work)

    def work_of(self, record: control.Logged) -> Work | None:
        """The work of the next launch like those that are known; None if there are none."""
        looks = _looks(record)
        known = self._known.get(looks)
        if not known:
            return None
        self._asked[looks] += 1
        return known[(self._asked[looks] - 1) % len(known)]


def _looks(record: control.Logged) -> tuple[Any, ...]:
    sizes = record.m, record.n, record.k, record.batches, record.bytes
    return (record.kind, record.name, record.type, *sizes)

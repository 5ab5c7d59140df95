"""Places of operations: in the tree of names, and in lanes of threads and asyncio tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from memprof.profiler.model import DeviceSummary, Lane, LaneKind, OperationSummary
from memprof.profiler.model.tracker import MAX_LANES, MAX_NAMES

OTHER = "(other operations)"

Counted = tuple[int, int]
"""Bytes and number of live tensors, -1 where they were not counted."""


class OperationTree:
    """Places are numbered in the order in which they were first seen; for one thread at a time."""

    def __init__(self) -> None:
        self.sums: list[OperationSummary] = []
        self._by_place: dict[tuple[int, str], int] = {}

    def place(self, parent: int, name: str) -> int:
        """The number of ``name`` below place ``parent``, -1 for the root."""
        if (parent, name) not in self._by_place and len(self.sums) >= MAX_NAMES:
            parent, name = -1, OTHER
        found = self._by_place.setdefault((parent, name), len(self.sums))
        if found == len(self.sums):
            self.sums.append(OperationSummary(name, parent))
        return found

    def add(
        self,
        place: int,
        took_ns: int,
        failed: bool,
        before: Counted,
        after: Counted,
        memory: Mapping[str, Sequence[int]],
    ) -> None:
        """Count an invocation that has ended; ``memory`` is by device bytes before, after and
        highest seen, and maybe more."""
        sums = self.sums[place]
        sums.max_ns = max(sums.max_ns, took_ns)
        sums.total_ns += took_ns
        sums.count += 1
        sums.failed += failed
        if before[0] >= 0 and after[0] >= 0:
            sums.tensor_bytes_delta += after[0] - before[0]
            sums.tensors_delta += after[1] - before[1]
            sums.tensors_measured += 1
        for device, figures in memory.items():
            delta, peak = figures[1] - figures[0], figures[2]
            known = sums.devices.setdefault(device, DeviceSummary(0, delta, peak, 0))
            known.total_delta += delta
            known.max_delta = max(known.max_delta, delta)
            known.max_peak = max(known.max_peak, peak)
            known.measured += 1

    def summaries(self) -> list[OperationSummary]:
        return [_copy(s) for s in self.sums]


def _copy(sums: OperationSummary) -> OperationSummary:
    devices = {name: dataclasses.replace(d) for name, d in sums.devices.items()}
    return dataclasses.replace(sums, devices=devices)


class Lanes:
    """The lanes of a record: one for each thread, and one for each asyncio task while an operation
    runs in it, which the next task of the thread takes then. A thread is known by its name and
    ``threading.get_ident()``, of which ``threads`` has that of the first of each lane."""

    def __init__(self) -> None:
        self.all: list[Lane] = []
        self.threads: dict[int, int] = {}
        self._by_thread: dict[tuple[int, str], int] = {}
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, task: int) -> int:
        """The lane for an operation on this thread and, unless it is 0, in this task. To be
        called by one thread at a time."""
        thread = threading.get_ident(), threading.current_thread().name
        lane = self._by_thread.get(thread)
        if lane is None:
            lane = self._new(LaneKind.THREAD, thread[1], len(self.all))
            if len(self._by_thread) < MAX_LANES:
                self._by_thread[thread] = lane
            self.threads.setdefault(lane, thread[0])
        if not task:
            return lane
        free = self._free[lane]
        return free.pop() if free else self._new(LaneKind.TASK, "", lane)

    def give_back(self, lane: int) -> None:
        self._free[self.all[lane].thread].append(lane)

    def _new(self, kind: LaneKind, name: str, thread: int) -> int:
        others = [i for i, lane in enumerate(self.all) if lane.kind is kind]
        if len(others) >= MAX_LANES:
            return others[-1]
        self.all.append(Lane(kind, name or f"task {len(others) + 1}", thread))
        return len(self.all) - 1


def current_task() -> int:
    """Identity of the asyncio task that runs on this thread, 0 if none does."""
    loop = asyncio._get_running_loop()  # documented, and does not raise where there is none
    if loop is None:
        return 0
    task = asyncio.current_task(loop)
    return id(task) if task is not None else 0

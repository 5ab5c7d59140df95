"""Lanes: which thread, or which of its asyncio tasks, an operation runs in."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from memprof.profiler.model import Lane, LaneKind
from memprof.profiler.model.tracker import MAX_LANES


class Lanes:
    """The lanes of a record. A thread keeps its own while it lives, a task while an operation
    runs in it; then the next of the same name, or of the same thread, takes it.

    Attributes:
        all: as in the record.
        threads: ``threading.get_ident()`` of the first thread of a thread's lane.
    """

    def __init__(self) -> None:
        self.all: list[Lane] = []
        self.threads: dict[int, int] = {}
        self._local = threading.local()
        self._free_threads: deque[int] = deque()
        self._free_tasks: deque[int] = deque()

    def of_thread(self) -> int | None:
        """The lane of this thread, None if it has none yet. To be called at any time."""
        holder = getattr(self._local, "holder", None)
        return holder.lane if holder is not None else None

    def take(self, task: int) -> int:
        """The lane for an operation on this thread and, unless it is 0, in this task. To be
        called by one thread at a time."""
        holder = getattr(self._local, "holder", None)
        if holder is None:
            holder = self._local.holder = _Holder(self._free_threads, self._thread_lane())
        thread: int = holder.lane
        if not task:
            return thread
        return self._lane(LaneKind.TASK, None, thread, self._free_tasks)

    def give_back(self, lane: int) -> None:
        """The operation of a task has ended."""
        self._free_tasks.append(lane)

    def _thread_lane(self) -> int:
        name = threading.current_thread().name
        lane = self._lane(LaneKind.THREAD, name, len(self.all), self._free_threads)
        self.threads.setdefault(lane, threading.get_ident())
        return lane

    def _lane(self, kind: LaneKind, name: str | None, thread: int, free: deque[int]) -> int:
        """A free lane of this name, or without a name of this thread; else a new one."""
        for _ in range(len(free)):
            lane = free.popleft()
            known = self.all[lane]
            if known.thread == thread if name is None else known.name == name:
                return lane
            free.append(lane)
        others = [i for i, lane in enumerate(self.all) if lane.kind is kind]
        if len(others) >= MAX_LANES:
            return others[-1]
        self.all.append(Lane(kind, f"task {len(others) + 1}" if name is None else name, thread))
        return len(self.all) - 1


class _Holder:
    """Gives a lane back when its thread ends, which destroys the thread's locals."""

    __slots__ = ("_free", "lane")

    def __init__(self, free: deque[int], lane: int) -> None:
        self._free = free
        self.lane = lane

    def __del__(self) -> None:
        self._free.append(self.lane)


def current_task() -> int:
    """Identity of the asyncio task that runs on this thread, 0 if none does."""
    loop = asyncio._get_running_loop()  # documented, and does not raise where there is none
    if loop is None:
        return 0
    task = asyncio.current_task(loop)
    return id(task) if task is not None else 0

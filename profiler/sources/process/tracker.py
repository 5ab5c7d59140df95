"""The tracker as users have it: its life, the thread that takes snapshots, what users call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from memprof.profiler.model import Profile, RunState, SnapshotKind, TrackerRecord
from memprof.profiler.sources.allocator.observer import OutOfMemoryEvent, listen
from memprof.profiler.support.text import visible

from .operations import CURRENT, Operation, OperationLog
from .operators import MAX_SEQUENCE, OperatorTable, OperatorWindow
from .recorder import TrackerRecorder
from .settings import TrackerSettings

log = logging.getLogger("memprof")

_OUT_OF_MEMORY_EVERY_NS = 5_000_000_000
"""Least ns between snapshots of failed requests: a search for the largest batch fails often."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class TrackedOperation:
    """``with tracker.track_operation(name):`` and ``@tracker.track_operation(name)``.

    It can be nested in itself and used by several threads and tasks at once. Inside code that
    Dynamo compiles it does nothing.
    """

    __slots__ = ("_log", "_open", "name")

    def __init__(self, log: Callable[[], OperationLog | None], name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of an operation is {name!r}; it must be a text")
        self.name = name
        self._log = log
        self._open: list[Operation] = []

    def __enter__(self) -> TrackedOperation:
        if torch.compiler.is_dynamo_compiling():
            return self
        log = self._log()
        operation = log.begin(self, self.name) if log is not None else None
        if operation is not None:
            self._open.append(operation)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if torch.compiler.is_dynamo_compiling() or not self._open:
            return
        # Ours is the innermost one of this context; if the context was left in the meantime
        # (a generator that another thread finishes), the last one opened.
        operation = CURRENT.get()
        while operation is not None and operation.owner is not self:
            operation = operation.parent
        if operation is None:
            operation = self._open[-1]
        self._open.remove(operation)
        operation.log.end(operation, kind is not None)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function or coroutine function."""
        log, name = self._log, self.name  # an object for each call: a thread ends its own
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{getattr(function, '__qualname__', function)} is a generator, whose body runs "
                "in pieces between its caller's: put `with tracker.track_operation(...)` around "
                "what is to be measured"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with TrackedOperation(log, name):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with TrackedOperation(log, name):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]


class MemoryTracker:
    """Tracks the memory of this process while it runs; see ``docs/tracker.md``.

    Made by ``track``. Before ``start`` and after ``stop`` it does nothing;
    its methods can be called all the same, so instrumented code need not ask.
    """

    def __init__(
        self,
        settings: TrackerSettings | None = None,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        on_start: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            settings: the defaults where none are given.
            clock: the time in ns, in place of ``time.perf_counter_ns``.
            on_start: called when it starts, by the thread that starts it.
            on_end: called when its file is written.
        """
        self.ending = False
        """True while it ends, until its file is written."""
        self._on_start = on_start
        self._on_end = on_end
        self._clock = clock
        # Not an Event: a signal's handler may come by while this thread sets it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._hears_no_more: Callable[[], None] = lambda: None
        self.configure(settings or TrackerSettings())

    def configure(self, settings: TrackerSettings) -> None:
        """Take settings before it starts, for the first time or again: with an empty record."""
        self.pid = os.getpid()
        self._state: RunState | None = None
        self._paused = False
        self._thread: threading.Thread | None = None
        self._out_of_memory_next = 0
        self._recorder = TrackerRecorder(settings, self._clock)

    @property
    def settings(self) -> TrackerSettings:
        """The settings in force."""
        return self._recorder.settings

    @property
    def path(self) -> Path | None:
        """The file that is written at the end; None where the tracker has not started."""
        return self._recorder.path

    @property
    def started(self) -> bool:
        """Tells whether it was started and has not stopped."""
        return self._state is RunState.RUNNING

    @property
    def enabled(self) -> bool:
        """Tells whether it records now; set by ``enable`` and ``disable``."""
        return self.started and not self._paused

    def __repr__(self) -> str:
        state = "not started" if self._state is None else self._state.value
        where = f" into {self.path}" if self.path is not None else ""
        return f"<MemoryTracker: {state}{where}>"

    # --- life -----------------------------------------------------------------------------

    def start(self, *, thread: bool = True) -> None:
        """Begin to track; never raises. What fails is logged, and the tracker stays off.

        Args:
            thread: False takes no periodic snapshots; for tests, which call ``snapshot``.
        """
        try:
            self._start(thread)
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
            log.error("The memory tracker cannot start, and stays off: %s", visible(why))
            log.debug("why", exc_info=True)
            self._state = RunState.STOPPED
            self._recorder.let_go()

    def _start(self, thread: bool) -> None:
        with self._recorder.lock:
            if self._state is not None:
                return
            self._state = RunState.RUNNING
            self.pid = os.getpid()
            self._recorder.begin()
        self._on_start()
        self._hears_no_more = listen(self._out_of_memory)
        self.snapshot(SnapshotKind.START)
        if thread:
            run = functools.partial(self._recorder.guard, self._take_snapshots)
            self._thread = threading.Thread(target=run, name="memprof-tracker", daemon=True)
            self._thread.start()

    def enable(self) -> None:
        """Record again after ``disable``; start if the tracker was made disabled."""
        with self._recorder.lock:
            if self._state is None:
                self.configure(dataclasses.replace(self.settings, enabled=True))
                self.start()
            elif self.started and self._paused:
                self._paused = False
                self._recorder.resume()
                self._wake.put(None)

    def disable(self) -> None:
        """Record nothing until ``enable``; operations that run are still ended."""
        with self._recorder.lock:
            if self.enabled:
                self._paused = True
                self._recorder.pause()

    def stop(self) -> None:
        """Take a last snapshot and write the file. Later calls do nothing."""
        self.finish(RunState.STOPPED, "stop_tracking()")

    def finish(self, state: RunState, reason: str) -> None:
        """End in this state; never raises. What cannot be written is logged."""
        recorder, thread = self._recorder, self._thread
        with recorder.lock:
            if not self.started or self.ending:
                return
            self.ending = True
        try:
            with recorder.lock:
                if not self._paused:
                    recorder.guard(self.snapshot, SnapshotKind.END)
                self._state = state
                recorder.let_go()
                self._hears_no_more()
            self._wake.put(None)
            if thread is not None and thread is not threading.current_thread():
                # It may wait for a lock that this thread holds, if a signal brought us here.
                thread.join(timeout=2)
            recorder.finish(state, reason)
        finally:
            self.ending = False
        self._on_end()

    def forked(self) -> None:
        """Let go of everything that belongs to the parent, in a forked child."""
        self._state = RunState.STOPPED
        self.ending = False  # The parent's thread that was ending it is not here.
        self._recorder.forked()
        self._thread = None

    # --- snapshots ------------------------------------------------------------------------

    def _take_snapshots(self) -> None:
        interval = round(self.settings.interval * 1e9)
        due = self._clock() + interval
        recorder = self._recorder
        while recorder.recording and self._recorder is recorder:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=max(due - self._clock(), 0) / 1e9)
            if self._clock() < due:
                continue
            if self.enabled:
                self._recorder.guard(self.snapshot, SnapshotKind.PERIODIC)
            # What is late is not made up for: no bursts after the process was stopped.
            due += interval * max(1, -(-(self._clock() - due) // interval))

    def snapshot(self, kind: SnapshotKind = SnapshotKind.PERIODIC, name: str = "") -> None:
        """Take a snapshot now, keep it and write it to the file."""
        self._recorder.snapshot(kind, name)

    def _out_of_memory(self, event: OutOfMemoryEvent) -> None:
        if self.enabled and self._clock() >= self._out_of_memory_next:
            name = f"cuda:{event.device}: {event.wanted:,} bytes asked for, {event.free:,} free"
            self._recorder.guard(self.snapshot, SnapshotKind.OUT_OF_MEMORY, name)
            # From its end: it may take seconds.
            self._out_of_memory_next = self._clock() + _OUT_OF_MEMORY_EVERY_NS

    # --- what users call ------------------------------------------------------------------

    def checkpoint(self, name: str) -> None:
        """Take a snapshot named ``name`` now."""
        if torch.compiler.is_compiling():
            return
        if self.enabled:
            self._recorder.guard(self.snapshot, SnapshotKind.CHECKPOINT, str(name))

    def track_operation(self, name: str) -> TrackedOperation:
        """Context manager and decorator: what runs inside is operation ``name``."""
        return TrackedOperation(self._operation_log, name)

    def _operation_log(self) -> OperationLog | None:
        return self._recorder.operations if self.started else None

    def track_pytorch_ops(self, *, memory: bool = True, sequence: int = 0) -> OperatorWindow:
        """Context manager: statistics of the operators that run inside.

        Args:
            memory: also the bytes that they allocate, and the highest sum of them.
            sequence: how many single calls, the last ones of all windows, are kept in order beside
                the sums; at most ``MAX_SEQUENCE``.

        Raises:
            ValueError: so many single calls cannot be kept.
        """
        if not 0 <= sequence <= MAX_SEQUENCE:
            raise ValueError(f"sequence={sequence}: 0 to {MAX_SEQUENCE:,} calls can be kept")
        return OperatorWindow(self._operator_table, self._recorder.problem, memory, sequence)

    def _operator_table(self) -> OperatorTable | None:
        return self._recorder.operators if self.enabled else None

    def scan(self) -> None:
        """Look through all Python objects for tensors: after ``gc.freeze()``, or where the
        collector is off. It takes 40 ms a million objects and holds the GIL meanwhile."""
        if self.enabled:
            self._recorder.tensors.scan()

    def record(self, call_threads: Mapping[int, int] | None = None) -> TrackerRecord:
        """Record so far.

        Args:
            call_threads: numbers of threads in the profile that the record joins, by
                ``threading.get_ident()``.
        """
        return self._recorder.record(call_threads or {})

    def profile(self) -> Profile:
        """The record so far, in the profile of what memprof compiled meanwhile."""
        return self._recorder.profile()

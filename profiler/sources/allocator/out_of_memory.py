"""Reports of failed allocations: the account of the moment, said in a line, and handed on.

Note [Which failures are reported in full]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A program that catches the error may fail at every step, and a report takes some tenths of a second,
since it looks at all objects of Python. So of one place (the lines of the program on the stack, and
autograd's operation) the first failure is reported, and then the second, fourth, eighth and so on;
each says how often it was. So are ``PLACES`` places, and whatever is the first for somebody who has
just asked for reports. What succeeds when the allocator has given back what it could is no failure.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from memprof.profiler.model import AllocationFailure, DeviceAccount, SourceFrame
from memprof.profiler.support.process_hooks import on_fork
from memprof.profiler.support.thread_activity import HERE

from . import _torch_compat as compat
from .allocator_session import AllocatorSession
from .failed_request import explain_failure
from .holders import Holders
from .known import Objects
from .observer import OutOfMemoryEvent, added, listen
from .present import holder_rules, unwatched_account
from .where import compiled_at, is_internal, source_of, where

log = logging.getLogger("memprof")

PLACES = 64

UNWATCHED = "(known with eager=True)"
"""Holder of a block whose holder was not found, where nobody followed the device."""


Sink = Callable[[DeviceAccount], str]
"""Keeps a report; returns the place, for the log, or ""."""

Writer = Callable[[DeviceAccount, list[str]], str]
"""Returns the line of the log on a report that is kept in the files of these names."""


class OutOfMemoryReports:
    """Makes the reports of this process; one instance, ``REPORTS``."""

    def __init__(self) -> None:
        self._sinks: list[Sink] = []
        self._watches: list[AllocatorSession] = []
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._listens = False
        self._writer: Writer | None = None
        self._unserved = False

    def start(self, writer: Writer | None = None) -> bool:
        """Report from now on; False if that is so already. With a ``writer`` each report is a line
        in the log, too."""
        with self._lock:
            if self._listens:
                return False
            self._listens, self._writer = True, writer
        listen(self._failed)
        return True

    def keep_with(self, sink: Sink) -> Callable[[], None]:
        """Hand reports to ``sink`` as well; what is returned ends that."""
        self._unserved = True
        return added(self._sinks, sink)

    def follow(self, watch: AllocatorSession) -> Callable[[], None]:
        """Ask ``watch`` for what it knows of each block; what is returned ends that."""
        return added(self._watches, watch)

    def _failed(self, event: OutOfMemoryEvent) -> None:
        place = _place(event)
        with self._lock:
            self._counts[place] += 1
            count = self._counts[place]
            earlier = sum(self._counts.values()) - count
            worth = count & (count - 1) == 0 and len(self._counts) <= PLACES
            worth, self._unserved = worth or self._unserved, False
        # Where two threads fail at once, one report has both of them in it.
        if not worth or not self._busy.acquire(blocking=False):
            return
        try:
            self._report(event, count, earlier)
        finally:
            self._busy.release()

    def _report(self, event: OutOfMemoryEvent, count: int, earlier: int) -> None:
        began = time.perf_counter()
        watch = next(reversed(self._watches), None)
        account = _account_of(event, watch)
        assert account.failure is not None
        account.failure.count, account.failure.earlier = count, earlier
        kept = []
        for sink in list(self._sinks):
            try:
                kept.append(sink(account))
            except Exception as e:
                log.error("memprof cannot keep the report of an out of memory: %s", e)
        if self._writer is not None:
            log.warning("%s", self._writer(account, [k for k in kept if k]))
        log.debug("this report took %.3f s", time.perf_counter() - began)

    def forked(self) -> None:
        """Drop the parent's sinks and watches in a forked child."""
        self._sinks.clear()
        self._watches.clear()
        self._lock, self._busy = threading.Lock(), threading.Lock()


REPORTS = OutOfMemoryReports()
on_fork(REPORTS.forked)


def _place(event: OutOfMemoryEvent) -> tuple[object, ...]:
    """Key of a failing place: device, lines of the program, autograd operation."""
    operation = compat.current_operation()
    name = type(operation).__name__ if operation is not None else ""
    stack = traceback.walk_stack(sys._getframe())
    lines = ((frame.f_code.co_filename, line) for frame, line in stack)
    return event.device, tuple(at for at in lines if not is_internal(at[0])), name


def _account_of(event: OutOfMemoryEvent, watch: AllocatorSession | None) -> DeviceAccount:
    """Everything that is reserved on the device now, and why the request did not fit.

    To be called where the request fails, on the thread that made it. Takes host memory alone. With
    a ``watch`` each block has the line that asked for it, without one who holds it now.
    """
    operation = compat.current_operation()
    segments, settings = compat.segments_now()
    segments = [s for s in segments if s["device"] == event.device]
    holder_of = holder_rules(Holders(also=operation), segments)
    account = None
    requested = 0
    if watch is not None and watch.follows:
        try:
            account, requested = watch.account_now(event.device, holder_of)
        except Exception as e:
            # The history may be somebody else's by now; what lies there is known without it.
            log.warning("memprof cannot say which lines asked: %s: %s", type(e).__name__, e)
    if account is None:
        look = Objects().of_process()
        account = unwatched_account(event.device, segments, settings, look, holder_of)
        account.rows = [replace(r, holder=r.holder or UNWATCHED) for r in account.rows]
    if HERE.activity:
        pool = HERE.pool
    else:
        pool = None if torch.cuda.is_current_stream_capturing() else (0, 0)
    failure = explain_failure(
        segments,
        wanted=event.wanted,
        allowed=event.allowed,
        device_total=account.total,
        device_free=event.free,
        stream=torch.cuda.current_stream(event.device).cuda_stream,
        pool=pool,
        requested=requested,
    )
    _say_who_asked(failure, operation)
    failure.activity = HERE.activity
    failure.thread = threading.current_thread().name
    failure.time_ns = time.time_ns()
    account.failure = failure
    account.ended = "an allocation failed"
    return account


def _say_who_asked(f: AllocationFailure, operation: object) -> None:
    at = where(list(_frames(sys._getframe())))
    compiled = compiled_at(at.generated)
    frame = compiled.frame or at.line
    # A backward runs in threads of autograd's own, and Python waits in another one.
    f.operation = type(operation).__name__ if operation is not None else ""
    called_from = _line_of_backward() if f.operation else None
    if frame is not None and at.generated is None and frame == called_from:
        frame = None
    f.frame, f.called_from = source_of(frame), source_of(called_from)
    f.modules = at.module_path
    f.nodes = compiled.node or at.nodes
    f.graph = compiled.graph


def _frames(frame: types.FrameType) -> Iterator[SourceFrame]:
    """A stack, innermost first, with the program's own frames behind those of generated code."""
    for at, line in traceback.walk_stack(frame):
        code = at.f_code
        yield SourceFrame(code.co_filename, line, code.co_name)
        yield from compat.frames_of_generated(code.co_filename, line)


def _line_of_backward() -> SourceFrame | None:
    """The line of the program that has called ``backward()`` or ``grad()``, in whatever thread."""
    # No variable here has a frame: one that had its own would keep all that it has.
    stacks = [list(_frames(frame)) for frame in sys._current_frames().values()]
    for frames in stacks:
        if any(f.function == "_engine_run_backward" for f in frames):
            return where(frames).line
    return None

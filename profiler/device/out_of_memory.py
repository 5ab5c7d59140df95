"""Reports of failed allocations: made where they fail, said in a line, and handed on.

Note [Which failures are reported in full]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A program that catches the error and goes on may fail at every step, or at every size that it
tries. A report takes some tenths of a second, since it looks at all objects of Python. So of one
place (the lines of the program on the stack, and autograd's operation) the first failure is
reported, and then the second, fourth, eighth and so on; each says how often it was. So are
``PLACES`` places, and whatever is the first for somebody who has just asked for reports.

torch tells of a failure when the allocator has given back what it could and tried again: what
succeeds then is none. Whether the program will catch the error nobody can know before it is raised.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

from memprof.profiler.model import DeviceAccount
from memprof.profiler.process_hooks import on_fork

from . import _torch_compat as compat
from . import observer
from .moment import Describe, account_of
from .observer import OutOfMemoryEvent
from .watch import Watch
from .where import is_internal

log = logging.getLogger("memprof")

PLACES = 64

Sink = Callable[[DeviceAccount], str]
"""Keeps a report; returns where, to be said in the log, or ""."""

Place = tuple[object, ...]


class OutOfMemoryReports:
    """Makes the reports of this process; one instance, ``REPORTS``."""

    def __init__(self) -> None:
        self._sinks: tuple[Sink, ...] = ()
        self._describe: Describe | None = None
        self._watches: tuple[Watch, ...] = ()
        self._counts: Counter[Place] = Counter()
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._listens = False
        self._says = True
        self._unserved = False

    def start(self, *, says: bool = True) -> bool:
        """Report from now on; False if that is so already.

        Args:
            says: whether each report is a line in the log, too.
        """
        with self._lock:
            if self._listens:
                return False
            self._listens, self._says = True, says
        observer.listen(self._failed)
        return True

    def describe_with(self, describe: Describe) -> None:
        """Ask ``describe`` about generated code."""
        self._describe = describe

    def keep_with(self, sink: Sink) -> Callable[[], None]:
        """Hand reports to ``sink`` as well; what is returned ends that."""
        with self._lock:
            self._sinks = (*self._sinks, sink)
            self._unserved = True

        def end() -> None:
            with self._lock:
                self._sinks = tuple(s for s in self._sinks if s is not sink)

        return end

    def follow(self, watch: Watch) -> Callable[[], None]:
        """Ask ``watch`` for what it knows of each block; what is returned ends that."""
        with self._lock:
            self._watches = (*self._watches, watch)

        def end() -> None:
            with self._lock:
                self._watches = tuple(w for w in self._watches if w is not watch)

        return end

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
        # Not imported before it is needed: it takes a quarter of a second.
        from memprof.profiler.report.failure import in_a_line

        began = time.perf_counter()
        watch = self._watches[-1] if self._watches else None
        account = account_of(event, watch, self._describe)
        assert account.failure is not None
        account.failure.count, account.failure.earlier = count, earlier
        kept = []
        for sink in self._sinks:
            try:
                kept.append(sink(account))
            except Exception as e:
                log.error("memprof cannot keep the report of an out of memory: %s", e)
        if self._says:
            log.warning("%s", in_a_line(account, [k for k in kept if k]))
        log.debug("this report took %.3f s", time.perf_counter() - began)

    def forked(self) -> None:
        """In a child: its parent's reports are none of its."""
        self._sinks, self._watches = (), ()
        self._lock, self._busy = threading.Lock(), threading.Lock()


def _place(event: OutOfMemoryEvent) -> Place:
    """What tells one failing place from another, without looking far."""
    operation = compat.current_operation()
    name = type(operation).__name__ if operation is not None else ""
    stack = traceback.walk_stack(sys._getframe())
    lines = ((frame.f_code.co_filename, line) for frame, line in stack)
    return event.device, tuple(at for at in lines if not is_internal(at[0])), name


REPORTS = OutOfMemoryReports()


@on_fork
def _in_child() -> None:
    REPORTS.forked()

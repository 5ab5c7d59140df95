"""The tracker of this process: what users call, and how it ends with the process.

Note [Ends of a process]
~~~~~~~~~~~~~~~~~~~~~~~~
=====================  ======================================================================
normal end, sys.exit   ``atexit``
uncaught exception,    ``sys.excepthook`` notes it and calls the hook before; then ``atexit``.
Ctrl+C                 No handler for SIGINT: Python's KeyboardInterrupt stays what it is
SIGTERM, SIGHUP        where the system's default would end the process: our handler writes the
                       file, puts the default back and sends the signal again, so the exit status is
                       the same
the same once more     while the file is being written it is kept until that is done
... with a handler     a handler of the user's from before ours is called by ours, after a snapshot;
of the user's          one set later replaces ours. Either way the process decides when it ends,
                       and ``atexit`` writes the file. (uvicorn puts the handler before it back
                       when it has shut down and raises the signal again: ours then.)
``os._exit``, SIGKILL, nothing can be done then; what was recorded is on the disk
crash in C
=====================  ======================================================================

A signal that comes inside a long call of C code waits for it. Forked children are not tracked: the
tracker's thread does not exist there, and two processes must not write one file.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

from memprof.profiler.model import RunState
from memprof.profiler.support.process_hooks import ForkSafeLock, on_fork

from .settings import SettingsError, TrackerSettings, configured
from .tracker import MemoryTracker

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Lifecycle:
    """Ends a tracker with its process. One a process: ``LIFECYCLE``."""

    def __init__(self) -> None:
        self.tracker: MemoryTracker | None = None
        self._former: dict[int, Any] = {}
        self._hook: Callable[..., Any] | None = None
        self._reason = ""
        self._registered = False
        self._waiting = 0

    def attach(self, tracker: MemoryTracker) -> None:
        """End ``tracker`` with the process, however that ends."""
        self.tracker = tracker
        self._reason, self._waiting = "", 0
        if not self._registered:
            self._registered = True
            atexit.register(self._at_exit)
            on_fork(self._in_child)
        if self._hook is None:
            self._hook, sys.excepthook = sys.excepthook, self._on_exception
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            former = signal.getsignal(number)
            # None: a handler in C, which could be neither called nor put back.
            if former in (None, signal.SIG_IGN, self._on_signal) or number in self._former:
                continue
            with contextlib.suppress(ValueError, OSError):  # not in the main interpreter
                signal.signal(number, self._on_signal)
                self._former[number] = former

    def detach(self) -> None:
        """Undo ``attach``, where nobody else has taken the place since."""
        self.tracker = None
        if self._hook is not None and sys.excepthook == self._on_exception:
            sys.excepthook = self._hook
            self._hook = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number, former in list(self._former.items()):
            if signal.getsignal(number) == self._on_signal:
                with contextlib.suppress(ValueError, OSError):
                    signal.signal(number, former)
                del self._former[number]

    def _at_exit(self) -> None:
        if self.tracker is not None and os.getpid() == self.tracker.pid:
            state = RunState.EXCEPTION if self._reason else RunState.EXIT
            self.tracker.finish(state, self._reason or "the interpreter ended")

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._reason = f"{kind.__name__}: {error}" if str(error) else kind.__name__
        (self._hook or sys.__excepthook__)(kind, error, trace)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        former = self._former.get(number, signal.SIG_DFL)
        tracker = self.tracker
        name = signal.Signals(number).name
        if callable(former):
            if tracker is not None:
                tracker.checkpoint(name)
            former(number, frame)
            return
        if tracker is not None and os.getpid() == tracker.pid:
            if tracker.ending:
                self._waiting = number
                return
            tracker.finish(RunState.SIGNAL, name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def ended(self) -> None:
        """Let the signal that came while the file was written do what it does."""
        number, self._waiting = self._waiting, 0
        if number:
            os.kill(os.getpid(), number)

    def _in_child(self) -> None:
        if self.tracker is not None:
            self.tracker.forked()
            self.detach()


LIFECYCLE = Lifecycle()

log = logging.getLogger("memprof")

_lock = ForkSafeLock()
_tracker: MemoryTracker | None = None


def track(
    output_dir: str | os.PathLike[str] | None = None,
    *,
    interval: float | None = None,
    enabled: bool | None = None,
    **settings: float,
) -> MemoryTracker:
    """Start tracking the memory of this process.

    What is not given comes from environment variables, then a TOML file, then the defaults
    (``docs/tracker.md``). At the end of the process, or ``stop_tracking()``,
    ``memory_profile_YYYYMMDD_HHMMSS.memprof`` is in ``output_dir``.

    Never raises for the sake of tracking: where something is wrong with a setting from a file
    or the environment, or nothing can be written, that is logged and the job goes on.

    Args:
        output_dir: folder of the file, default ``.``; must exist.
        interval: seconds between snapshots, default 5.0, 0.01 to 1,000,000.
        enabled: default True. False makes a tracker that does nothing until its ``enable()``.
        **settings: any other field of ``TrackerSettings``, such as ``largest=20``.

    Returns:
        The tracker of this process. While one runs, it is that one, unchanged, with a warning.

    Raises:
        SettingsError: an argument cannot have its value, or is no setting.
    """
    given = {"output_dir": output_dir, "interval": interval, "enabled": enabled, **settings}
    found = _configured(given)
    with _lock:
        tracker = _tracker or _new(found)
        if tracker.pid == os.getpid() and tracker.started:
            log.warning(
                "A memory tracker runs in this process already, into %s; it goes on as it is. "
                "Call stop_tracking() first to start another",
                tracker.path,
            )
            return tracker
        tracker.configure(found)
        if found.enabled:
            tracker.start()
        return tracker


def _new(settings: TrackerSettings) -> MemoryTracker:
    global _tracker
    _tracker = tracker = MemoryTracker(
        settings,
        on_start=lambda: LIFECYCLE.attach(tracker),
        on_end=LIFECYCLE.ended,
    )
    return tracker


def _configured(arguments: Mapping[str, object]) -> TrackerSettings:
    """Settings from wherever they can be read; what is wrong elsewhere is logged.

    An argument is the caller's own, at this line, and raises. A file may be somebody else's, in a
    folder above, and the variables are this job's: a job must not end because of one.
    """
    found = configured(arguments, environment={}, file=False).settings
    try:
        return configured(arguments).settings
    except Exception as e:
        reason = str(e) if isinstance(e, SettingsError) else f"{type(e).__name__}: {e}"
        log.error("%s. The tracker takes no setting from files and variables", reason.rstrip("."))
        return found


def current_tracker() -> MemoryTracker:
    """The tracker of this process; one that does nothing if none was started."""
    with _lock:
        if _tracker is None:
            return _new(_configured({}))
        if _tracker.pid != os.getpid():
            _warn_of_fork(_tracker.pid)
        return _tracker


@functools.cache
def _warn_of_fork(parent: int) -> None:
    log.warning(
        "This process was forked from %d, whose memory is tracked; this one's is not. Call "
        "track() here to track it",
        parent,
    )


def checkpoint(name: str) -> None:
    """Take a snapshot named ``name`` now; nothing where no tracker runs."""
    current_tracker().checkpoint(name)


def stop_tracking() -> None:
    """Stop the tracker and write its file; nothing where none runs."""
    tracker = _tracker
    if tracker is not None and tracker.pid == os.getpid():
        tracker.stop()
        LIFECYCLE.detach()

"""What users call: ``memprof.initialize_memory_tracker`` and its three companions."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Mapping

from .lifecycle import LIFECYCLE
from .settings import Configured, SettingsError, TrackerSettings, configured
from .tracker import MemoryTracker

__all__ = [
    "get_memory_tracker",
    "initialize_memory_tracker",
    "memory_checkpoint",
    "stop_memory_tracker",
]

log = logging.getLogger("memprof")

_lock = threading.RLock()
_tracker: MemoryTracker | None = None
_owner = 0
_told = False


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def initialize_memory_tracker(
    output_dir: str | os.PathLike[str] | None = None,
    enabled: bool | None = None,
    interval: float | None = None,
    *,
    largest: int | None = None,
    max_snapshots: int | None = None,
    max_operations: int | None = None,
    operation_share: float | None = None,
    scan_at_start: bool | None = None,
    cpu_allocator: bool | None = None,
) -> MemoryTracker:
    """Start tracking the memory of this process.

    What is not given comes from environment variables, then a TOML file, then the defaults
    (``docs/tracker.md``). At the end of the process, or ``stop_memory_tracker()``,
    ``memory_profile_YYYYMMDD_HHMMSS.json`` is in ``output_dir``.

    Never raises for the sake of tracking: where something is wrong with a setting from a file
    or the environment, or nothing can be written, that is logged and the job goes on.

    Args:
        output_dir: folder of the file, default ``.``; must exist.
        enabled: default True. False makes a tracker that does nothing until its ``enable()``.
        interval: seconds between snapshots, default 5.0, 0.01 to 1,000,000.
        largest, max_snapshots, max_operations, operation_share, scan_at_start, cpu_allocator:
            see ``TrackerSettings``.

    Returns:
        The tracker of this process. While one runs, it is that one, unchanged, with a warning.

    Raises:
        SettingsError: an argument cannot have its value.
    """
    global _tracker, _owner, _told
    arguments = {
        "output_dir": os.fspath(output_dir) if output_dir is not None else None,
        "enabled": enabled,
        "interval": interval,
        "largest": largest,
        "max_snapshots": max_snapshots,
        "max_operations": max_operations,
        "operation_share": operation_share,
        "scan_at_start": scan_at_start,
        "cpu_allocator": cpu_allocator,
    }
    settings = _configured(arguments).settings
    with _lock:
        former = _tracker
        if former is not None and former.started and _owner == os.getpid():
            log.warning(
                "A memory tracker runs in this process already, into %s; it goes on as it is. Call "
                "stop_memory_tracker() first to start another",
                former.path,
            )
            return former
        parent = _owner if former is not None and _owner != os.getpid() else None
        if former is not None and parent is None and former._fresh:
            former._on_use = None
            former._configure(settings)
            _tracker = former
        else:
            _tracker = _new(settings)
            if former is not None:
                former._successor = _tracker
        _owner, _told = os.getpid(), False
        if settings.enabled:
            _tracker.start(parent_pid=parent)
        return _tracker


def _new(settings: TrackerSettings) -> MemoryTracker:
    tracker = MemoryTracker(settings)
    tracker._on_start = LIFECYCLE.attach
    return tracker


def _configured(arguments: Mapping[str, object]) -> Configured:
    own = configured(arguments, environment={}, file=False)
    try:
        return configured(arguments)
    except Exception as e:
        # An argument is the caller's own, at this line; a file or a variable is not, and a job
        # must not end because of one.
        wrong = _wrong(e)
    try:
        # The file may be somebody else's, in a folder above; the variables are this job's.
        found = configured(arguments, file=False)
    except Exception as e:
        both = "; ".join(dict.fromkeys((wrong, _wrong(e))))
        log.error("%s. The tracker takes no setting from files and variables", both)
        return own
    log.error("%s. The tracker takes no setting from files", wrong)
    return found


def _wrong(e: Exception) -> str:
    return str(e).rstrip(".") if isinstance(e, SettingsError) else f"{type(e).__name__}: {e}"


def get_memory_tracker() -> MemoryTracker:
    """The tracker of this process; one that does nothing if none was initialized.

    Unless a file or variable says ``enabled = true`` in so many words: then it starts with the
    first operation, checkpoint or operator window that goes through it, if none was initialized
    until then. So code that is instrumented for good is switched on without being changed.
    """
    global _tracker, _owner, _told
    with _lock:
        if _tracker is None:
            found = _configured({})
            _tracker, _owner = _new(found.settings), os.getpid()
            if found.settings.enabled and "enabled" in found.origin:
                _tracker._on_use = functools.partial(_start_by_use, _tracker)
        elif _owner != os.getpid() and not _told:
            _told = True
            log.warning(
                "This process was forked from %d, whose memory is tracked; this one's is not. Call "
                "initialize_memory_tracker() here to track it",
                _owner,
            )
        return _tracker


def _start_by_use(tracker: MemoryTracker) -> None:
    with _lock:
        if tracker is _tracker and tracker._fresh and _owner == os.getpid():
            tracker.start()


def memory_checkpoint(name: str) -> None:
    """Take a snapshot named ``name`` now; nothing where no tracker runs."""
    get_memory_tracker().checkpoint(name)


def stop_memory_tracker() -> None:
    """Stop the tracker and write its file; nothing where none runs."""
    with _lock:
        tracker = _tracker if _owner == os.getpid() else None
    if tracker is not None:
        tracker.stop()
        LIFECYCLE.detach()

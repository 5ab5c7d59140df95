"""Describes what users call: ``memprof.track`` and its three companions."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping

from memprof.profiler.support.process_hooks import ForkSafeLock

from .lifecycle import LIFECYCLE
from .settings import Configured, SettingsError, TrackerSettings, configured
from .tracker import MemoryTracker

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
    found = _configured(given).settings
    with _lock:
        if _tracker is None:
            tracker, parent = _new(found, starts_by_use=False), None
        else:
            tracker, parent = _tracker, _tracker.pid
            if parent == os.getpid():
                parent = None
                if tracker.started:
                    log.warning(
                        "A memory tracker runs in this process already, into %s; it goes on as it "
                        "is. Call stop_tracking() first to start another",
                        tracker.path,
                    )
                    return tracker
            tracker.configure(found)
        if found.enabled:
            tracker.start(parent_pid=parent)
        return tracker


def _new(settings: TrackerSettings, *, starts_by_use: bool) -> MemoryTracker:
    global _tracker
    _tracker = tracker = MemoryTracker(
        settings,
        starts_by_use=starts_by_use,
        on_start=lambda: LIFECYCLE.attach(tracker),
        on_end=LIFECYCLE.ended,
    )
    return tracker


def _configured(arguments: Mapping[str, object]) -> Configured:
    """Settings from wherever they can be read; what is wrong elsewhere is logged.

    An argument is the caller's own, at this line, and raises. A file may be somebody else's, in a
    folder above, and the variables are this job's: a job must not end because of one.
    """
    found, takes = configured(arguments, environment={}, file=False), ""
    wrong: dict[str, None] = {}
    for file, places in (True, "files"), (False, "files and variables"):
        try:
            found = configured(arguments, file=file)
            break
        except Exception as e:
            reason = str(e) if isinstance(e, SettingsError) else f"{type(e).__name__}: {e}"
            wrong[reason.rstrip(".")], takes = None, places
    if wrong:
        log.error("%s. The tracker takes no setting from %s", "; ".join(wrong), takes)
    return found


def current_tracker() -> MemoryTracker:
    """The tracker of this process; one that does nothing if none was initialized.

    Unless a file or variable says ``enabled = true`` in so many words: then it starts with the
    first operation, checkpoint or operator window that goes through it, if none was initialized
    until then. So code that is instrumented for good is switched on without being changed.
    """
    with _lock:
        if _tracker is None:
            found = _configured({})
            wanted = found.settings.enabled and "enabled" in found.origin
            return _new(found.settings, starts_by_use=wanted)
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

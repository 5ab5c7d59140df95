"""The process-wide lock of captures and warm-ups.

Capturing and routing allocations to a pool are states of the process and its device, not
of a thread: a ``synchronize()`` in one thread breaks a capture in another.

Note [What finalizers may wait for]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The garbage collector may find out anywhere that a function has died: in the midst of a capture, or
in a thread that has a lock for which one that captures is waiting. So a finalizer waits for
nothing. What it has to do is done at once if nobody captures, and else by the thread that does,
when it is through.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from memprof.profiler.support.process_hooks import on_fork

from .. import _torch_compat as compat

_lock = threading.RLock()
_inside = threading.local()
_waiting: deque[Callable[[], None]] = deque()


@contextmanager
def capturing() -> Iterator[None]:
    """Within it no other thread captures, warms up, or shuts a manager down. Re-entrant."""
    try:
        with _lock:
            _inside.depth = capture_depth() + 1
            try:
                yield
            finally:
                _inside.depth -= 1
    finally:
        if _waiting:
            _do_what_waits()


def capture_depth() -> int:
    """Number of ``capturing()`` blocks that the calling thread is in."""
    return getattr(_inside, "depth", 0)


def when_nobody_captures(action: Callable[[], None]) -> None:
    """Do ``action`` with the lock: now, or after the capture that is under way. Waits for nothing
    and raises nothing."""
    _waiting.append(action)
    _do_what_waits()


def _do_what_waits() -> None:
    # Whoever has the lock comes by here when it lets go of it, later than anything was appended
    # that could not be done for its sake.
    while _waiting and not capture_depth() and _lock.acquire(blocking=False):
        _inside.depth = 1
        try:
            if _waiting:
                _waiting.popleft()()
        except Exception:
            compat.log.warning("something of the graph trees could not be let go", exc_info=True)
        finally:
            _inside.depth = 0
            _lock.release()


@on_fork
def _after_fork() -> None:
    # Another thread may have had the lock. What waits would call the device, which a child has
    # not: it is never done.
    global _lock
    _lock = threading.RLock()
    _abandoned.append(list(_waiting))
    _waiting.clear()


_abandoned: list[object] = []

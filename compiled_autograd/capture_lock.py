"""One thread captures at a time.

Note [Backwards of several threads]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The engine has one compiler, and refuses a backward that begins while another thread is being
captured. So whoever enters the engine while compiled autograd is on takes a turn. It ends
when the captured graph begins to run, not when that has finished: from then on compiled
autograd is off (``runtime.py``), others run in the normal engine beside it, and a hook may
wait for another thread's backward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from memprof.profiler.process_hooks import on_fork

from . import _torch_compat
from .engine_order import Entered
from .switch import SWITCH

# Of an RLock the owner is known from the moment that it has it, so that an interrupt (Ctrl+C) in
# between leaves no lock that nobody gives back. Nobody takes it twice.
_lock: Any = threading.RLock()
_forget = False


class _Thread(threading.local):
    """Of the innermost backward of a thread.

    Attributes:
        being_captured: the engine has asked for a capture.
        ran: some of it has run: a hook, an accumulation; or C++ has let go of what the forward
            saved. Before that the normal engine can take it.
        entered: how it was begun, for whoever wants to know.
    """

    being_captured = False
    ran = False
    entered: Callable[[], Entered] | None = None


THREAD = _Thread()


def in_turn(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which waits while another thread's backward is being captured."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        # Inside its own capture a thread does not wait for itself; the engine refuses.
        if not SWITCH.is_on() or _is_mine():
            return run(*args, **kwargs)
        try:
            _lock.acquire()
            if not SWITCH.is_on():  # the one waited for has begun to run
                end_turn()
            else:
                _forget_now()
            return run(*args, **kwargs)
        finally:
            end_turn()

    return run_backward


def end_turn() -> None:
    """Let the next thread capture, if it is this thread's turn."""
    if _is_mine():
        _lock.release()


def _is_mine() -> bool:
    return bool(_lock._is_owned())


def forget_captured_graphs() -> None:
    """Empty the engine's cache before anything is captured again."""
    global _forget
    _forget = True
    if _is_mine():
        return
    try:
        if _lock.acquire(blocking=False):
            _forget_now()
    finally:
        end_turn()


def _forget_now() -> None:
    global _forget
    if _forget:
        _torch_compat.clear_cache()
        _forget = False


@on_fork
def _after_fork() -> None:
    """In a child: the thread whose turn it was may not exist there."""
    global _lock
    if not _is_mine():
        _lock = threading.RLock()

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

import os
import threading
from collections.abc import Callable
from typing import Any

from . import _torch_compat
from .engine_order import Entered
from .switch import SWITCH

_lock = threading.Lock()
_holder: int | None = None
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
        global _holder
        # Inside its own capture a thread does not wait for itself; the engine refuses.
        if not SWITCH.is_on() or _holder == threading.get_ident():
            return run(*args, **kwargs)
        _lock.acquire()
        _holder = threading.get_ident()
        if not SWITCH.is_on():  # the one waited for has begun to run
            end_turn()
        else:
            _forget_now()
        try:
            return run(*args, **kwargs)
        finally:
            end_turn()

    return run_backward


def end_turn() -> None:
    """The next one, if it is this thread's turn."""
    global _holder
    if _holder == threading.get_ident():
        _holder = None
        _lock.release()


def forget_captured_graphs() -> None:
    """Empty the engine's cache before anything is captured again."""
    global _forget
    _forget = True
    if _holder != threading.get_ident() and _lock.acquire(blocking=False):
        _forget_now()
        _lock.release()


def _forget_now() -> None:
    global _forget
    if _forget:
        _forget = False
        _torch_compat.clear_cache()


def _after_fork() -> None:
    """In a child: the thread whose turn it was may not exist there."""
    global _lock, _holder
    if _holder != threading.get_ident():
        _lock, _holder = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)

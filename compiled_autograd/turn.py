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

from . import _torch_compat

_lock = threading.Lock()
_holder: int | None = None


class _Thread(threading.local):
    """Of the innermost backward of a thread.

    Attributes:
        being_captured: nothing of it has run, no hook and no accumulation, and
            C++ has not yet let go of what the forward saved; so if it fails now, the normal
            engine can take it.
    """

    being_captured = False


THREAD = _Thread()


def in_turn(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, which waits while another thread's backward is being captured."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        global _holder
        # Inside its own capture a thread does not wait for itself; the engine refuses.
        if not _is_on() or _holder == threading.get_ident():
            return run(*args, **kwargs)
        _lock.acquire()
        _holder = threading.get_ident()
        if not _is_on():  # the one waited for has begun to run
            end_turn()
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


def _is_on() -> bool:
    return bool(_torch_compat.state().compiled_autograd_enabled)

"""Having the main thread do something while it runs the program."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable

log = logging.getLogger("memprof")

_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_waiting: list[object] = []
"""Calls that C is yet to make, which must not be collected."""


_PERIOD_S = 0.5
_IDLE = 0.1
"""Share of a core below which a process computes nothing."""


def wait_while_busy(seconds: float) -> None:
    """Wait as long as this process computes something, and so many seconds at most: a main thread
    that has not come to its call by then waits for what may never come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        used = time.process_time()
        time.sleep(_PERIOD_S)
        if time.process_time() - used < _IDLE * _PERIOD_S:
            return


def on_main_thread(do: Callable[[], object]) -> bool:
    """Have the main thread call ``do`` as soon as it is between two bytecodes.

    No operator of torch runs on it then, so that nothing is allocated from Python meanwhile. A main
    thread that waits in C for long, as in a backward, comes to it when it is back.

    Returns:
        False if too many calls are waiting already.
    """

    def call(_: int | None) -> int:
        _waiting.remove(pending)
        try:
            do()
        except Exception:
            log.exception("memprof could not look at the memory of this run")
        return 0

    pending = _Call(call)
    _waiting.append(pending)
    if ctypes.pythonapi.Py_AddPendingCall(pending, None) == 0:
        return True
    _waiting.remove(pending)
    return False

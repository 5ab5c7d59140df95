"""Taking the allocator's history while a program runs that comes to no mark, as inference does."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable

from .watch import DRAIN, Watch

log = logging.getLogger("memprof")

_PERIOD = 0.2
"""Seconds between two looks at how much there is."""

_LOOKS = 100
"""The time between two looks at modules, in times that a look takes."""

_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_waiting: list[object] = []
"""What C is yet to call must not be collected."""


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


class Drains:
    """A thread that has the main thread follow the history whenever there is a lot of it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._asked = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memprof drains", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; what the main thread was asked for it may do once more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        look_at = 0.0
        while not self._stop.wait(_PERIOD):
            watch = self._watch
            begun = time.monotonic()
            if watch.follows and begun >= look_at:
                watch.look()
                look_at = begun + _LOOKS * (time.monotonic() - begun)
            if watch.follows and not self._asked and watch.undrained >= DRAIN:
                self._asked = on_main_thread(self._drain)

    def _drain(self) -> None:
        self._asked = False
        self._watch.drain_if_due()

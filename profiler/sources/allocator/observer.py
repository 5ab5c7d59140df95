"""Calls listeners when a CUDA device has no more memory.

torch's observers cannot be taken back: there is one of ours for the life of the process.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memprof.profiler.support.process_hooks import ForkSafeLock

from . import _torch_compat as compat

log = logging.getLogger("memprof")


@dataclass(frozen=True, slots=True)
class OutOfMemoryEvent:
    """A request that failed, as the allocator reports it. Bytes.

    Attributes:
        device: number of the device.
        wanted: that it tried to get from the device.
        allowed: that it may have of the device.
        free: that the device has left.
    """

    device: int
    wanted: int
    allowed: int
    free: int


Listener = Callable[[OutOfMemoryEvent], None]

_listeners: list[Listener] = []
_here = threading.local()
_ATTACHING = ForkSafeLock()
"""An observer of torch's cannot be taken back: several threads may come, and one is attached."""


def added(to: list[Any], one: Any) -> Callable[[], None]:
    """Add to a list, from any thread; what is returned takes it out, and may be called again."""
    to.append(one)

    def end() -> None:
        with contextlib.suppress(ValueError):
            to.remove(one)

    return end


def listen(listener: Listener) -> Callable[[], None]:
    """Tell ``listener`` from now on, or from where CUDA starts, on the thread that asked and before
    the error is raised; what is returned ends that, and may be called again."""
    end = added(_listeners, listener)
    compat.on_cuda_start(_attach)
    return end


def _attach() -> None:
    with _ATTACHING:
        _attach_once()


@functools.cache
def _attach_once() -> None:
    compat.on_out_of_memory(_observe)  # Where that cannot be done, it is not tried again.


def _observe(device: int, wanted: int, allowed: int, free: int) -> None:
    if getattr(_here, "inside", False):  # a listener's own request
        return
    _here.inside = True
    try:
        for listener in list(_listeners):
            try:
                listener(OutOfMemoryEvent(device, wanted, allowed, free))
            except Exception as e:
                # Below this stands C++ of torch's, which is about to raise the program's error.
                text = "memprof failed at a device's out of memory: %s: %s. Please report this."
                log.error(text, type(e).__name__, e)
    finally:
        _here.inside = False

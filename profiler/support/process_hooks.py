"""Hooks that every package registers once: for a forked child and when torch is reset; and the
switch of Python's collector."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

Action = Callable[[], object]

_on_reset: list[Action] = []
_first_on_reset: list[Action] = []


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No collection of Python's begins inside."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def on_fork(action: Action) -> Action:
    """Call ``action`` in every forked child, after what was registered before. A decorator too."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)
    return action


def on_reset(action: Action) -> Action:
    """Call ``action`` when torch forgets what it has compiled. A decorator too."""
    _on_reset.append(action)
    return action


def on_reset_first(action: Action) -> Action:
    """Call ``action`` before all that ``on_reset`` registers, at whatever time it does."""
    _first_on_reset.append(action)
    return action


def reset() -> None:
    """Undo and forget, the last registered first: what stands on others before these."""
    for action in [*_first_on_reset, *reversed(_on_reset)]:
        action()


class ForkSafeLock:
    """A re-entrant lock that is free in a forked child, where another thread that had it is not."""

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def _in_child(self) -> None:
        if not self._lock._is_owned():  # the thread that has forked gives its own back
            self._lock = threading.RLock()


_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


@on_fork
def _free_locks() -> None:
    for lock in list(_LOCKS):
        lock._in_child()

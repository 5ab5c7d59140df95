"""Describes what every package registers once: what to do in a forked child and when torch is
reset, and which memory replays run in; and the switch of Python's collector."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Action = Callable[[], object]

_on_reset: list[Action] = []


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
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


def reset() -> None:
    """Undo and forget, the last registered first: what stands on others before these."""
    for action in reversed(_on_reset):
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


# Memory that replays run in. ``torch.profiler`` sees what torch's allocators hand out; CUDA graphs
# replay into a pool that was filled once. Whoever owns such memory registers here, so that a
# data-flow profile can tell it from memory that was there before the trace (docs/dataflow.md,
# "Replayed calls").

log = logging.getLogger("memprof")


@dataclass(frozen=True, slots=True)
class ReplayMemory:
    """The memory of one pool: bytes that it has from the system, and (first address, address after
    the last) of its segments."""

    device: str
    reserved: int
    ranges: Sequence[tuple[int, int]]


Source = Callable[[], Sequence[ReplayMemory]]

_sources: list[Source] = []


def on_replay_memory(source: Source) -> None:
    _sources.append(source)


def replay_memory() -> list[ReplayMemory]:
    found: list[ReplayMemory] = []
    for source in list(_sources):
        try:
            found.extend(source())
        except Exception:
            log.warning("memprof could not ask for the memory of replays", exc_info=True)
    return found

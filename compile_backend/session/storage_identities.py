"""Numbers of storages that hold for the whole process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

import torch

from memprof.profiler.support.process_hooks import ForkSafeLock


class StorageIdentities:
    """Names for storages that hold for the whole process, with a notice when one dies.

    Addresses are reused, so a storage gets a number the first time it is seen; numbers are not.
    torch keeps a storage's Python object as long as the storage itself, so a weak reference to it
    fires exactly when the memory is released.
    """

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._by_address: dict[int, int] = {}
        self._listeners: tuple[Callable[[int], None], ...] = ()
        self._lock = ForkSafeLock()

    def identity(self, storage: torch.UntypedStorage) -> int:
        """The storage's number; a new one if it was not seen before."""
        address = storage._cdata
        found = self._by_address.get(address)
        if found is not None:
            return found
        with self._lock:
            found = self._by_address.setdefault(address, next(self._next))
        weakref.finalize(storage, self._died, address, found).atexit = False
        return found

    def existing(self, storage: torch.UntypedStorage) -> int | None:
        """The storage's number if it has one."""
        return self._by_address.get(storage._cdata)

    def listen(self, on_death: Callable[[int], None]) -> None:
        """Call ``on_death(number)`` for every storage that dies from now on, from whatever thread
        dropped the last reference; it must not raise."""
        with self._lock:
            self._listeners = (*self._listeners, on_death)

    def unlisten(self, on_death: Callable[[int], None]) -> None:
        """Stop calling ``on_death``."""
        with self._lock:
            self._listeners = tuple(f for f in self._listeners if f != on_death)

    def _died(self, address: int, number: int) -> None:
        with self._lock:
            if self._by_address.get(address) == number:
                del self._by_address[address]
        for on_death in self._listeners:
            on_death(number)

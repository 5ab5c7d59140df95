"""Which tensors are alive, known without ever walking all Python objects.

Note [How live tensors are found]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Python's garbage collector tracks every tensor, and every new object enters its youngest generation.
So it is enough to look through the two young generations (some thousand objects) at each snapshot,
and when a collection is about to move them to the oldest one (``gc.callbacks``): what it promotes
has then been seen.

A tensor found is remembered by a weak reference that tells when it dies, so totals are kept
by difference; a snapshot does not walk the known tensors either. The second generation changes
only when a collection promotes into it, so a look looks through it only if one has come since the
last: operations, which are looked at at both edges, cost as little as the few hundred objects of
the first.

Measured (torch 2.13, Python 3.11): a training step of 40 parameters and AdamW causes no collection
of the second generation and costs nothing; a loop that only builds nested lists and dictionaries
that stay, the worst case, takes 2 % longer. The alternatives:

* ``gc.get_objects()``: 41 ms for 1 000 000 objects, in one piece, with the GIL held.
* ``TorchDispatchMode``, ``__torch_function__`` modes: microseconds an operator, and the first
  silently turns ``torch.compile`` off.
* global module hooks, ``saved_tensors_hooks``: Dynamo compiles them into the user's graphs.
* ``torch.profiler``'s memory events: 1.6 µs or more an allocation.

What this does not see is in ``docs/tracker.md``. With the collector off (``gc.disable()``) the
youngest generation grows without bound. Beyond ``MAX_YOUNG`` objects a snapshot does not look
through it and says so (``complete=False``); the next collection, also one by hand, finds what was
left out.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cache
from heapq import nlargest
from itertools import takewhile
from typing import Any

import torch

from memprof.profiler.sources.allocator._torch_compat import is_stand_in, without_torch_function
from memprof.profiler.support.process_hooks import collector_paused

from ._torch_compat import is_wrapper, storage_address

MAX_YOUNG = 20_000
"""Most young objects that a snapshot looks through; about 1 ms, in one piece."""
MAX_QUEUED = 64
"""Collections whose tensors may wait for the next look; past it, dead ones are dropped."""
MAX_TRIES = 3
"""Tries to look while other threads make collections; what was missed is found by the next look."""
RECHECK = 1_000
"""Known tensors whose size is read again at each snapshot, in turn."""

_Refs = list["weakref.ref[torch.Tensor]"]

# Python 3.14's collector has one young generation; generation 1 is the whole old one there.
_YOUNG = (0,) if sys.version_info >= (3, 14) else (0, 1)


@dataclass(slots=True, eq=False)
class TensorStorage:
    """A storage that known tensors refer to, by the address of torch's StorageImpl.

    Attributes:
        operation: summary of the first operation to end after it was made in it, -1 if unknown.
        number: how many were found up to it.
        tensors: how many known tensors refer to it.
        sample: one of them; None if that one has died and the next is not yet known.
    """

    address: int
    nbytes: int
    device: str
    number: int
    operation: int = -1
    tensors: int = 0
    sample: TensorRef | None = None

    def tensor(self) -> torch.Tensor | None:
        """A tensor that refers to it, if one is at hand. Whoever holds it delays the release of
        its memory: let go of it at once."""
        return self.sample() if self.sample is not None else None


class TensorRef(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("key", "storage")
    key: int
    storage: TensorStorage


class LiveTensors:
    """The live Python tensors of this process, the ``top`` largest at hand; ``nbytes`` of their
    storages, and how many ``tensors`` there are, by device; and how many storages it has
    seen so far (``storages_seen``), those that have died included."""

    def __init__(self, top: int = 10) -> None:
        self.nbytes: Counter[str] = Counter()
        self.tensors: Counter[str] = Counter()
        self.lock = threading.RLock()
        self.storages_seen = 0
        self._top = top
        self._known: dict[int, TensorRef] = {}
        self._storages: dict[int, TensorStorage] = {}
        self._largest: dict[int, TensorStorage] = {}
        self._cutoff = 0
        self._to_recheck: list[TensorRef] = []
        # Both are filled at any instant, from any thread: only atomic operations on them.
        self._died: deque[TensorRef] = deque()
        self._found: deque[_Refs] = deque()
        self._on_death = self._died.append  # one object for all references
        self._watching = False
        self._collections = 0  # of any generation, since we watch
        self._collections_seen = -1  # when the second generation was last looked through

    # --- looking --------------------------------------------------------------------------

    def watch(self) -> None:
        self._watching = True
        gc.callbacks.append(self._on_collection)

    def unwatch(self) -> None:
        self._watching = False
        self._collections_seen = -1
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        # A collection of the youngest generation alone moves objects to the second, which is
        # looked through before it is emptied.
        self._collections += 1
        if phase == "start" and info["generation"] >= len(_YOUNG) - 1 and not sys.is_finalizing():
            self._found.append([r for g in _YOUNG for r in _tensors(gc.get_objects(g))])
            if len(self._found) > MAX_QUEUED and self.lock.acquire(blocking=False):
                try:
                    self._drop_the_dead()
                finally:
                    self.lock.release()

    def _drop_the_dead(self) -> None:
        """Shorten what waits, each living tensor once: looks can be hours apart."""
        alive = {id(r): r for refs in self._all_found() for r in refs if r() is not None}
        self._found.append(list(alive.values()))

    def _all_found(self) -> Iterator[_Refs]:
        with contextlib.suppress(IndexError):
            while True:
                yield self._found.popleft()

    def look(self) -> bool:
        """Take in what is new, and forget what has died. False if there were too many young objects
        to look through."""
        small = gc.get_count()[0] <= MAX_YOUNG
        with self.lock:
            if small:
                self._find_young()
            self._take_in()
        return small

    def _find_young(self) -> None:
        self._forget_dead()
        for _ in range(MAX_TRIES):
            collections = self._collections
            generations = _YOUNG if collections != self._collections_seen else _YOUNG[:1]
            young = [gc.get_objects(g) for g in generations]
            # Whoever is in these lists lives. So an identity in ``_known`` is this very tensor's,
            # once those that died before are forgotten.
            self._forget_dead()
            for objects in young:
                if found := _tensors(objects, self._known):
                    self._found.append(found)
            # One in between has moved objects out of where they were looked for.
            if self._collections == collections:
                self._collections_seen = collections if self._watching else -1
                break

    def scan(self) -> None:
        """Look through *all* Python objects, with the GIL held."""
        # What is remembered of many tensors would set off collections of the whole heap.
        with collector_paused():
            self._found.append(_tensors(gc.get_objects()))
            with self.lock:
                self._take_in()

    def _take_in(self) -> None:
        with without_torch_function():
            for references in self._all_found():
                for reference in references:
                    if (tensor := reference()) is not None:
                        self._add(tensor)
                        del tensor
            self._forget_dead()

    def _add(self, tensor: torch.Tensor) -> None:
        # A new tensor can have the identity, and its storage the address, of one that died.
        if self._died:
            self._forget_dead()
        key = id(tensor)
        if key in self._known:
            return
        try:
            # Forget the placeholders of a compiler and what wraps tensors that count themselves.
            if type(tensor) is not torch.Tensor and (is_stand_in(tensor) or is_wrapper(tensor)):
                return
            found = _storage(tensor)
        except Exception:
            return
        if found[2].type == "meta":
            return
        known = TensorRef(tensor, self._on_death)
        known.key = key
        self._known[key] = known
        self._attach(known, found)

    def _attach(self, known: TensorRef, found: tuple[int, int, torch.device]) -> None:
        address, nbytes, device = found
        storage = self._storages.get(address)
        if storage is None:
            self.storages_seen += 1
            storage = TensorStorage(address, 0, _name(device), self.storages_seen)
            self._storages[address] = storage
        known.storage = storage
        storage.tensors += 1
        if storage.sample is None:
            storage.sample = known
        self.tensors[storage.device] += 1
        if storage.nbytes != nbytes:
            self._resize(storage, nbytes)

    def _resize(self, storage: TensorStorage, nbytes: int) -> None:
        self.nbytes[storage.device] += nbytes - storage.nbytes
        storage.nbytes = nbytes
        room = len(self._largest) < 16 * self._top
        if nbytes > self._cutoff or (room and nbytes == self._cutoff > 0):
            self._largest[storage.address] = storage
        else:
            self._largest.pop(storage.address, None)

    def _detach(self, known: TensorRef) -> None:
        storage = known.storage
        storage.tensors -= 1
        self.tensors[storage.device] -= 1
        if storage.sample is known:
            storage.sample = None
        if not storage.tensors:
            self._resize(storage, 0)
            if self._storages.get(storage.address) is storage:
                del self._storages[storage.address]

    def _forget_dead(self) -> None:
        known_tensors, died = self._known, self._died
        while died:
            known = died.popleft()
            if known_tensors.get(known.key) is known:
                del known_tensors[known.key]
                self._detach(known)

    # --- reading again --------------------------------------------------------------------

    def recheck(self) -> None:
        """Read sizes again, of the largest storages and of some more tensors in turn: storages are
        resized (FSDP frees them so) and exchanged (``tensor.data = ...``) under living tensors."""
        with self.lock, without_torch_function():
            if not self._to_recheck:
                self._to_recheck = list(self._known.values())
            part = [s.sample for s in self.largest()]
            part += self._to_recheck[-RECHECK:]
            del self._to_recheck[-RECHECK:]
            for known in part:
                if known is not None and (tensor := known()) is not None:
                    self._read_again(known, tensor)
                    del tensor

    def _read_again(self, known: TensorRef, tensor: torch.Tensor) -> None:
        try:
            address, nbytes, device = found = _storage(tensor)
        except Exception:
            return
        if address != known.storage.address or str(device) != known.storage.device:
            self._detach(known)
            self._attach(known, found)
            return
        if known.storage.sample is None:
            known.storage.sample = known
        if nbytes != known.storage.nbytes:
            self._resize(known.storage, nbytes)

    # --- asking ---------------------------------------------------------------------------

    def sums(self) -> tuple[int, int]:
        """Bytes and number of all devices' tensors."""
        return self.nbytes.total(), self.tensors.total()

    def made_since(self, seen: int) -> list[TensorStorage]:
        """Storages that live, and that were not among the first ``seen``."""
        with self.lock:
            # In order of their numbers: one whose address comes again is at the end.
            newest = reversed(self._storages.values())
            return list(takewhile(lambda s: s.number > seen, newest))

    def largest(self) -> list[TensorStorage]:
        """The storages with most bytes, as many as asked for, largest first."""
        with self.lock:
            wanted = min(self._top, len(self._storages))
            if len(self._largest) < wanted or len(self._largest) > 64 * self._top:
                self._choose()
            return nlargest(self._top, self._largest.values(), key=lambda s: s.nbytes)

    def _choose(self) -> None:
        """Set the size from which a storage is kept at hand, so that four times as many are
        as are asked for: they may die."""
        best = nlargest(4 * self._top, self._storages.values(), key=lambda s: s.nbytes)
        self._cutoff = best[-1].nbytes if best else 0
        self._largest = {s.address: s for s in best if s.nbytes}


@cache
def _name(device: torch.device) -> str:
    return str(device)


def _storage(tensor: torch.Tensor) -> tuple[int, int, torch.device]:
    """Address, bytes and device; raises whatever where there is none, or for odd subclasses."""
    address = storage_address(tensor)
    nbytes, device = tensor.untyped_storage().nbytes(), tensor.device
    if type(nbytes) is not int or type(device) is not torch.device:
        raise TypeError(f"{nbytes!r} bytes on {device!r}")
    return address, nbytes, device


def _tensors(objects: list[Any], known: Container[int] = ()) -> _Refs:
    """Weak references to the tensors among ``objects``, which is empty afterwards, but for those
    with a ``known`` identity.

    Kinds first: one pass in C says whether there is a tensor at all, for 12 ns an object.
    """
    tensor = torch.Tensor
    kinds = {kind for kind in set(map(type, objects)) if tensor in kind.__mro__}
    found = []
    if kinds:
        found = [weakref.ref(o) for o in objects if type(o) in kinds and id(o) not in known]
    # The list can hold a container that holds the list: a frame that a debugger made, a list of
    # this module's. Left to the collector, such a cycle keeps every object in it alive.
    objects.clear()
    return found

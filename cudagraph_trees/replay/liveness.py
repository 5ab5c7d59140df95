"""Does anyone but the trees still hold an output, and which outputs of a path are held?

Note [When an output is dead]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An output is dead when nothing outside the trees can reach its memory. Every tensor over it, views
and ``detach()`` results included, holds one reference to the one ``StorageImpl``. So the trees keep
a weak pointer and compare the count with what they hold themselves.

To save the construction of tensors, a replay hands out the same tensor object each time
(a *cached* output). A user holding that very object does not change the storage's count, and a
second number is needed: references to the Python object. It rises for a user's variable, and also
for a holder in C++ (a variable saved for backward): while one exists, the ``TensorImpl`` owns its
Python object. Both counts together are exact, but for a tensor that was given other memory
(``t.data = …``) while something else is over the storage: whether it is there still is looked at,
too.

One holder does not count. A cached output of a forward carries the ``grad_fn`` of its
last run, whose saved variables pin other outputs of the same forward. If only the trees
hold the tensor, ``detach_()`` lets go of it. ``held`` does that before it believes that something
is live.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from .. import _torch_compat as compat
from . import native

_count = compat.storage_use_count
_refs = sys.getrefcount


def address_of(t: torch.Tensor) -> int:
    """Address of the storage of ``t``.

    Raises:
        RuntimeError: with the explanation of ``errors``, if the memory was reused.
    """
    return t.untyped_storage().data_ptr()


class StorageWeakRefWrapper:
    """A weak reference to the storage of one output: one object stands for one output of one node
    for good.

    Attributes:
        address: of the memory; valid whether or not the storage is alive.
        pointer: weak pointer to the ``StorageImpl``, owned by this object.
        cache: list in which the node keeps the cached tensor, or None.
        slot: index in ``cache``.
        own: references to the storage that the cached tensor stands for.
    """

    __slots__ = ("__weakref__", "address", "cache", "own", "pointer", "slot")

    def __init__(self, of: torch.Tensor | torch.UntypedStorage) -> None:
        storage = of.untyped_storage() if isinstance(of, torch.Tensor) else of
        self.address: int = storage.data_ptr()
        self.pointer: int = compat.weak_ref(storage)
        self.cache: list[torch.Tensor | None] | None = None
        self.slot = 0
        self.own = 0

    def expired(self) -> bool:
        """Tells whether nobody outside the trees holds the storage."""
        if self.cache is None:
            return _count(self.pointer) == 0
        # The list's reference and the argument's.
        return _refs(self.cache[self.slot]) == 2 and self.is_alone()

    def is_alone(self) -> bool:
        """Tells whether the cached tensor is the only one over the storage, the trees' own
        aside.
        """
        t = self.cache[self.slot] if self.cache is not None else None
        return t is not None and _count(self.pointer) == self.own and self.has(t)

    def has(self, t: torch.Tensor) -> bool:
        return bool(t.untyped_storage()._cdata == self.pointer)

    def rebind(self, of: torch.Tensor) -> None:
        """Point at the storage of ``of``, which is at the same address."""
        old, self.pointer = self.pointer, compat.weak_ref(of)
        compat.free_weak_ref(old)

    def attach_cache(self, cache: list[torch.Tensor | None], slot: int) -> None:
        """Do not count ``cache[slot]``, held by nobody else now, as a holder from here on."""
        t = cache[slot]
        assert t is not None
        self.rebind(t)
        del t
        self.own = _count(self.pointer)
        self.slot = slot
        self.cache = cache

    def remove_extra_reference(self) -> None:
        """The cached tensor is gone from the cache: every holder counts again."""
        self.cache = None
        self.own = 0

    def __del__(self) -> None:
        if compat is not None:  # interpreter shutdown
            compat.free_weak_ref(self.pointer)


OutputRefs: TypeAlias = list[StorageWeakRefWrapper | None]
"""One entry an output of a node; None if its memory is not in the pool."""

FindLive: TypeAlias = Callable[[list[StorageWeakRefWrapper]], Sequence[int]]
"""Gives the indices of held storages, if only by a stale autograd graph: see ``held``. Hot."""


def find_live() -> FindLive:
    """The fastest ``FindLive`` of this machine: in C++ of our own where that was built."""
    built = native.load()
    return slowly if built is None else built.Liveness(StorageWeakRefWrapper).live


def slowly(refs: list[StorageWeakRefWrapper]) -> Sequence[int]:
    """Finds indices of references that somebody holds, in Python: the oracle of the native one."""
    return [i for i, r in enumerate(refs) if not r.expired()]


def detach_in_place(t: torch.Tensor) -> None:
    """Take ``t`` out of its graph, in inference mode too, where ``detach_`` alone does nothing."""
    # Only there: a guard that dies with an interrupt's traceback sets the grad mode once more.
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            t.detach_()
    else:
        t.detach_()


def let_go_of_stale_graphs(refs: Sequence[StorageWeakRefWrapper]) -> bool:
    """Detach cached outputs that only the trees hold; whether there were any."""
    found = False
    for r in refs:
        if r.cache is None or _refs(r.cache[r.slot]) != 2:
            continue
        t = r.cache[r.slot]
        if t is not None and t.grad_fn is not None:
            detach_in_place(t)
            t._backward_hooks = None
            if t.retains_grad:
                t.requires_grad_()  # it cannot be told to forget that: it is not handed out again
            found |= t.grad_fn is None  # or nothing was gained by looking again
    return found


def held(
    refs: Sequence[StorageWeakRefWrapper],
    siblings: Sequence[StorageWeakRefWrapper] | None = None,
) -> list[StorageWeakRefWrapper]:
    """Outputs among ``refs`` that are really held, and not by stale autograd graphs of
    ``siblings`` (of ``refs`` by default)."""
    live = [r for r in refs if not r.expired()]
    while live and let_go_of_stale_graphs(siblings if siblings is not None else refs):
        live = [r for r in live if not r.expired()]
    return live


def live_by_address(refs: Sequence[StorageWeakRefWrapper]) -> dict[int, StorageWeakRefWrapper]:
    """The first held storage at each address."""
    out: dict[int, StorageWeakRefWrapper] = {}
    for r in refs:
        if r.address not in out and not r.expired():
            out[r.address] = r
    return out

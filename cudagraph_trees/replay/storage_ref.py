"""Weak references to storages: does anyone but the trees still hold this output?

Note [When an output is dead]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An output is dead when nothing outside the trees can reach its memory. Its storage knows
most of that: every tensor over the memory, views and ``detach()`` results included, holds
one reference to the one ``StorageImpl``. So the trees keep a weak pointer and compare the
count with what they hold themselves.

To save the construction of tensors, a replay hands out the same tensor object each time
(a *cached* output). Then the trees hold a reference too, a user holding that very object
does not change the storage's count, and a second number is needed: references to the
Python object. It rises for a user's variable, and also for a holder in C++ (a variable
saved for backward): while a C++ holder exists, the ``TensorImpl`` owns its Python object.
Both counts together are exact, but for a tensor that was given other memory (``t.data = …``)
while something else is over the storage: whether it is there still is looked at, too.

One holder does not count. A cached output of a forward carries the ``grad_fn`` of its
last run, whose saved variables pin other outputs of the same forward. If only the trees
hold the tensor, nobody can call backward through that ``grad_fn`` any more; ``detach_()``
lets go of it. ``liveness.held`` does that before it believes that something is live.
"""

from __future__ import annotations

import sys

import torch

from .. import _torch_compat as compat

_count = compat.storage_use_count
_refs = sys.getrefcount


def address_of(t: torch.Tensor) -> int:
    """Address of the storage of ``t``.

    Raises:
        RuntimeError: with the explanation of ``errors``, if the memory was reused.
    """
    return t.untyped_storage().data_ptr()


class StorageWeakRefWrapper:
    """A weak reference to the storage of one output.

    One object stands for one output of one node for good; ``rebind`` points it at the
    storage that the output has now.

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
        """Whether nobody outside the trees holds the storage."""
        if self.cache is None:
            return _count(self.pointer) == 0
        # The list's reference and the argument's.
        return _refs(self.cache[self.slot]) == 2 and self.is_alone()

    def is_alone(self) -> bool:
        """Whether the cached tensor is the only one over the storage, the trees' own aside."""
        t = self.cache[self.slot] if self.cache is not None else None
        return t is not None and _count(self.pointer) == self.own and self.has(t)

    def has(self, t: torch.Tensor) -> bool:
        """Whether a tensor lies in the storage."""
        return bool(t.untyped_storage()._cdata == self.pointer)

    def rebind(self, of: torch.Tensor) -> None:
        """Point at the storage of ``of``, which is at the same address."""
        old, self.pointer = self.pointer, compat.weak_ref(of)
        compat.free_weak_ref(old)

    def attach_cache(self, cache: list[torch.Tensor | None], slot: int) -> None:
        """From here on ``cache[slot]``, held by nobody else now, does not count."""
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

    def __repr__(self) -> str:
        return f"StorageWeakRefWrapper to {self.address}; {'dead' if self.expired() else 'alive'}"

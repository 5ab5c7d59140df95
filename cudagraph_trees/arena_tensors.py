"""Tensors over arena memory: those that leave a call, and those that never do.

Note [Two kinds of memory in a replay]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Leased*: outputs and saved activations. Each call makes a new tensor over a block of its
own, which the tensor's storage owns (Note [Ownership on the CPU] in ``arena``).

*Scratch*: temporaries, at planned offsets of one block. Their tensors are made once for
each plan and used at every call. One call at a time uses a scratch: a second call at the
same time, in another thread or further down the same stack, finds none free, gets another
one as long as there are fewer than ``MAX_SCRATCH``, and else runs without. That no
temporary escapes is known from the observed program. It is checked all the same after
each call: the number of references to the scratch's storage must be what it was. If it
is not, somebody has made a view that outlives the call; then the scratch is theirs, and is
never used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from . import _torch_compat as compat
from .arena import LeasePool, Tokens

MAX_SCRATCH = 4
"""Calls that use temporaries in the arena at the same time."""

LEASES_PER_SITE = 4
"""Blocks that one allocation in the code has out at most: a loop that holds the last
output while it computes the next needs two, four micro-batches of which the backwards come
later need four."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor to be made.

    Attributes:
        shape, stride: in elements.
        dtype: its type.
        nbytes: of its storage.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int

    @staticmethod
    def of(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> TensorShape:
        """With the storage that ``torch.empty_strided`` would give it."""
        extent = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        return TensorShape(tuple(shape), tuple(stride), dtype, extent * dtype.itemsize)


class LeasedTensors:
    """Makes the tensors of one allocation that leave a call. Call it to get one.

    Where the pool has none to give, the tensor gets ordinary memory.
    """

    __slots__ = ("_count", "_dtype", "_flat", "_label", "_nbytes", "_pool", "_shape", "_stride", "_tokens")

    def __init__(self, pool: LeasePool, spec: TensorShape, label: str) -> None:
        self._pool, self._label = pool, label
        self._tokens = Tokens(LEASES_PER_SITE)
        self._shape, self._stride, self._dtype = spec.shape, spec.stride, spec.dtype
        self._nbytes, self._count = spec.nbytes, spec.nbytes // spec.dtype.itemsize
        self._flat = spec.shape == (self._count,) and spec.stride == (1,)

    def __call__(self) -> torch.Tensor:
        view = self._pool.lease(self._nbytes, self._tokens, self._label)
        if view is None:
            return compat.empty_strided_cpu(self._shape, self._stride, self._dtype)
        tensor = torch.frombuffer(view, dtype=self._dtype, count=self._count)
        if self._flat:
            return tensor
        return compat.reinterpret_tensor(tensor, self._shape, self._stride, 0)


ScratchTensors = tuple[torch.Tensor, ...]


class ScratchPlan:
    """Temporaries of one function at their offsets.

    Attributes:
        nbytes: of the scratch that it needs.
        tensors: what to make, with the offset in bytes.
    """

    __slots__ = ("__weakref__", "nbytes", "tensors")

    def __init__(self, nbytes: int, tensors: Sequence[tuple[int, TensorShape]]) -> None:
        self.nbytes = nbytes
        self.tensors = tuple(tensors)


class Scratch:
    """One block for temporaries, and the tensors over it that were made so far.

    Attributes:
        prepared: by plan.
        nbytes: its size.
    """

    __slots__ = ("_base", "_pool", "_references", "_storage", "nbytes", "prepared")

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool
        self._base: torch.Tensor | None = None
        self._storage = 0
        self._references = 0
        self.nbytes = 0
        self.prepared: dict[ScratchPlan, ScratchTensors] = {}

    def prepare(self, plan: ScratchPlan) -> ScratchTensors | None:
        """The tensors of a plan, made; None if there is no memory for them."""
        # As plain tensors: those made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            if plan.nbytes > self.nbytes:
                self.prepared.clear()
                self._base = None
                self.nbytes = 0
                view = self._pool.lease(plan.nbytes, Tokens(1), "scratch")
                if view is None:
                    return None
                self._base = torch.frombuffer(view, dtype=torch.uint8)
                self.nbytes = plan.nbytes
            assert self._base is not None
            storage = self._base.untyped_storage()
            made = tuple(
                compat.tensor_in_storage(storage, offset, t.shape, t.stride, t.dtype)
                for offset, t in plan.tensors
            )
            self.prepared[plan] = made
            self._storage = storage._cdata
            del storage
        self._references = compat.storage_use_count(self._storage)
        return made

    def intact(self) -> bool:
        """Whether nobody but this object refers to the memory."""
        return compat.storage_use_count(self._storage) == self._references


class ScratchPool:
    """Scratches that are not in use: take one with ``idle.pop()``, see ``take``.

    Attributes:
        idle: free ones, the one used last at the end.
        abandoned: how many were lost to views that outlived their call.
    """

    def __init__(self, leases: LeasePool) -> None:
        self.leases = leases
        self.idle: list[Scratch] = []
        self.abandoned = 0
        self._tokens = Tokens(MAX_SCRATCH)
        leases.on_trim(self.clear)

    def take(self) -> Scratch | None:
        """A free scratch, None if too many are in use."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        try:
            self._tokens.pop()
        except IndexError:
            return None
        return Scratch(self.leases)

    def give_back(self, scratch: Scratch) -> bool:
        """After a call. False if the scratch had to be abandoned."""
        if scratch.intact():
            self.idle.append(scratch)
            return True
        self.abandoned += 1
        self._tokens.append(None)
        return False

    def clear(self) -> None:
        """Let go of all free ones."""
        while self.idle:
            try:
                self.idle.pop()
            except IndexError:
                return
            self._tokens.append(None)

    def forget(self, plan: ScratchPlan) -> None:
        """A function died: drop its tensors."""
        for scratch in list(self.idle):
            scratch.prepared.pop(plan, None)

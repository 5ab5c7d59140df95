"""Tensors over arena memory: those that leave a call, and those that never do.

Note [Two kinds of memory in a replay]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Leased*: outputs and saved activations. Each call makes a new tensor over a block of its
own, which the tensor's storage owns (Note [Ownership on the CPU] in ``memory``).

*Scratch*: temporaries, at planned offsets of one block. Their tensors are made once for each plan
and used at every call. One call at a time uses a scratch: a second one meanwhile gets another, up
to ``MAX_SCRATCH``, and else runs without. That no temporary escapes is known from the observed
program, and checked after each call: where there are more references to the scratch's storage than
before, a view outlives the call; then the scratch is its holder's, and never used again.

Note [What is different in an arena]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A leased output lies in memory that torch did not allocate, and torch cannot change the size
of such a storage. ``y.resize_()`` beyond its size, and ``out=y`` with a larger result, raise
where they would work on ordinary memory. And torch's own memory profilers do not see it;
memprof's data-flow profile does (``profiler/dataflow/replays.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.settings import current_settings
from memprof.profiler.process_hooks import SCRATCH, on_replay_memory, on_reset

from .memory import LeasePool, Tokens

BoxedCall = Callable[[list[Any]], Any]

MAX_SCRATCH = 4
"""Calls that use temporaries in the arena at the same time."""

LEASES_PER_SITE = 4
"""Blocks that one allocation in the code has out at most: a loop that holds the last
output while it computes the next needs two, four micro-batches of which the backwards come
later need four."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor to be made; shape and stride in elements, bytes of its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int

    @staticmethod
    def of(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> TensorShape:
        """With the storage that ``torch.empty_strided`` would give it."""
        last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        extent = 0 if 0 in shape else 1 + last
        return TensorShape(tuple(shape), tuple(stride), dtype, extent * dtype.itemsize)


def leased_tensors(pool: LeasePool, spec: TensorShape, label: str) -> Callable[[], torch.Tensor]:
    """What makes the tensors of one allocation that leave a call.

    Where the pool has none to give, the tensor gets ordinary memory.
    """
    tokens: Tokens = [None] * LEASES_PER_SITE
    shape, stride, dtype, nbytes = spec.shape, spec.stride, spec.dtype, spec.nbytes
    count = nbytes // dtype.itemsize
    is_flat = shape == (count,) and stride == (1,)

    def lease() -> torch.Tensor:
        view = pool.lease(nbytes, tokens, label)
        if view is None:
            return compat.empty_strided_cpu(shape, stride, dtype)
        tensor = torch.frombuffer(view, dtype=dtype, count=count)
        return tensor if is_flat else compat.reinterpret_tensor(tensor, shape, stride, 0)

    return lease


@dataclass(eq=False, repr=False)
class ScratchPlan:
    """Temporaries of one function at their offsets in a scratch; ``bind`` makes of them what is
    called."""

    nbytes: int
    tensors: Sequence[tuple[int, TensorShape]]
    bind: Callable[[Sequence[torch.Tensor]], BoxedCall]
    # What ``bind`` made. Here and not in the scratch, which is to keep no function alive.
    bound: dict[Scratch, BoxedCall] = field(default_factory=dict, init=False)


class Scratch:
    """One block for temporaries, and the tensors over it that were made so far."""

    __slots__ = ("__weakref__", "_base", "_plans", "_pool", "_storage", "nbytes")

    def __init__(self, pool: LeasePool) -> None:
        self._pool = pool
        self._base: torch.Tensor | None = None
        self._plans: weakref.WeakSet[ScratchPlan] = weakref.WeakSet()
        self._storage = 0  # address of its StorageImpl
        self.nbytes = 0

    def prepare(self, plan: ScratchPlan) -> BoxedCall | None:
        """Make the tensors of a plan and bind them; None if there is no memory for them."""
        # As plain tensors: those made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            if plan.nbytes > self.nbytes:
                self.release()
                view = self._pool.lease(plan.nbytes, [None], SCRATCH)
                if view is None:
                    return None
                self._base = torch.frombuffer(view, dtype=torch.uint8)
                self.nbytes = plan.nbytes
            assert self._base is not None
            storage = self._base.untyped_storage()
            self._storage = storage._cdata
            tensors = [
                compat.tensor_in_storage(storage, offset, t.shape, t.stride, t.dtype)
                for offset, t in plan.tensors
            ]
        bound = plan.bound[self] = plan.bind(tensors)
        self._plans.add(plan)
        return bound

    def release(self) -> None:
        """Give the memory back, and have no plan hold tensors over it."""
        for plan in list(self._plans):
            plan.bound.pop(self, None)
        self._plans.clear()
        self._base = None
        self.nbytes = 0

    def references(self) -> int:
        """How many tensors over the memory there are, and a constant."""
        return compat.storage_use_count(self._storage)


class ScratchPool:
    """Scratches that are not in use.

    Attributes:
        idle: those that have memory, the one used last at the end.
        abandoned: how many were lost to views that outlived their call.
    """

    def __init__(self, leases: LeasePool) -> None:
        self.idle: list[Scratch] = []
        self.abandoned = 0
        self._leases = leases
        self._tokens: Tokens = [None] * MAX_SCRATCH
        leases.on_trim(self.clear)

    def take(self) -> Scratch | None:
        """A free scratch, None if too many are in use; ``idle`` gets it back."""
        try:
            return self.idle.pop()
        except IndexError:
            pass
        try:
            self._tokens.pop()
        except IndexError:
            return None
        return Scratch(self._leases)

    def abandon(self, scratch: Scratch) -> None:
        """Leave a scratch to those who hold views of it."""
        scratch.release()
        self.abandoned += 1
        self._tokens.append(None)

    def clear(self) -> None:
        """Give the memory of all scratches that are not in use back to the pool."""
        while True:
            try:
                self.idle.pop().release()
            except IndexError:
                return
            self._tokens.append(None)


POOL = LeasePool(lambda: current_settings().pool_budget)
SCRATCHES = ScratchPool(POOL)
on_replay_memory(lambda: [POOL.replay_memory()])
# Free memory goes back; calls that come later start again.
on_reset(POOL.trim)


def with_scratch(plan: ScratchPlan, lost: Callable[[], None], plain: BoxedCall) -> BoxedCall:
    """``plain`` with the temporaries of ``plan`` in a scratch that no other call uses meanwhile.

    Args:
        lost: called when somebody has kept a temporary beyond a call.
        plain: called when there is no memory.
    """
    idle, take, abandon, bound = SCRATCHES.idle, SCRATCHES.take, SCRATCHES.abandon, plan.bound

    def call(inputs: list[Any]) -> Any:
        scratch = take()
        if scratch is None:
            return plain(inputs)
        run = bound.get(scratch) or scratch.prepare(plan)
        if run is None:
            idle.append(scratch)
            return plain(inputs)
        before = scratch.references()
        try:
            out = run(inputs)
        except BaseException:
            # The traceback may hold views of temporaries.
            abandon(scratch)
            raise
        if scratch.references() <= before:
            idle.append(scratch)
        else:
            abandon(scratch)
            lost()
        return out

    return call

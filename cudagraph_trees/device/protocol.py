"""Interface between the tree manager and its device.

Note [Who does what: manager and device]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The *manager* knows functions, nodes, paths, generations and liveness: which function runs as
warm-up, recording or replay, when a path ends, and what a user who touches a dead output is told.
It never looks into memory. The *device* (``cuda``) knows memory and execution: a pool, with a
deterministic allocator whose books can be saved and restored, runs in it, and captures of them. It
never asks whether that is safe.

The contract between the two:

1. *Bookkeeping follows the first run.* A warm-up or a capture really allocates and
   frees. A replay does not: it touches the same bytes as the captured run and leaves
   the allocator's books alone.
2. *Before anything is warmed up or captured after a replay*, the manager calls
   ``restore`` with the checkpoint that the last replayed node left, so the books
   say what memory says. After it, exactly the live storages are allocated.
3. *A storage handed to ``restore`` as live* frees its block when it dies, as an
   ordinary one does. A storage rebuilt by ``tensor_at`` owns nothing before that.
4. *``Checkpoint`` objects are opaque*, and stay valid for as long as the pool does.
5. *Calls are boxed.* A model takes one list, and empties it so that inputs can die
   while it runs. Whoever calls one and needs the inputs afterwards keeps its own list.
6. *A failure leaves no trace*, or a pool that says that it is ``damaged``. If ``warm_up`` or
   ``capture`` raises, routing and capture have ended, and every block that the failed run allocated
   is freed as soon as the exception and its traceback are gone.
7. *A replay reads its inputs where the captured run read them*, and leaves its outputs where that
   left its own: the manager checks the addresses of static and managed inputs, copies all others
   into place before it, and hands out tensors over the outputs.
8. *One at a time.* The manager has the process-wide capture lock whenever it asks something of a
   pool, but for ``tensor_at`` and launches, which are hot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Input: TypeAlias = Any
"""``Tensor | int | torch.Generator`` or an opaque object (a device mesh, ...)."""
Output: TypeAlias = "torch.Tensor | int | None"
Model: TypeAlias = Callable[[list[Input]], Sequence[Output]]
"""A boxed callable, see point 5 of Note [Who does what: manager and device]."""
Checkpoint: TypeAlias = Any
"""Opaque, see point 4 of Note [Who does what: manager and device]."""
StoragePointer: TypeAlias = int
"""Address of a ``StorageImpl`` (``UntypedStorage._cdata``), valid while someone holds
a weak or strong reference to it."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """All that is needed to rebuild a tensor over existing memory: ``address`` and ``nbytes`` are
    those of its storage; ``shape``, ``stride`` and ``offset`` are in elements."""

    address: int
    nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(t: torch.Tensor) -> TensorSpec:
        storage = t.untyped_storage()
        return TensorSpec(
            address=storage.data_ptr(),
            nbytes=storage.nbytes(),
            shape=tuple(t.shape),
            stride=t.stride(),
            offset=int(t.storage_offset()),
            dtype=t.dtype,
            device=t.device,
        )


Frames: TypeAlias = tuple[tuple[str, int, str], ...]
"""``(file, line, function)`` of a Python stack, innermost first; () if unknown."""


@dataclass(frozen=True, slots=True)
class PoolBlock:
    """One piece of a segment that is allocated: ``nbytes`` that the allocator set aside, rounding
    included, of which ``requested`` were asked for, and the stack that did."""

    address: int
    nbytes: int
    requested: int
    frames: Frames

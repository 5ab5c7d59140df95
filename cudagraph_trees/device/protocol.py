"""What the tree manager asks of a device.

Note [Who does what: manager and device]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The *manager* knows functions, nodes, paths, generations and liveness. It decides
which function runs as warm-up, recording or replay, when a path ends, which outputs
are live, and what a user who touches a dead output is told. It never looks into
memory.

A *device* knows memory and execution. It owns a pool: a range of memory with a
deterministic allocator whose bookkeeping can be saved and restored. It runs a
function while that function's allocations come out of the pool, turns one run into
something that can be repeated (a CUDA graph; on the CPU a plan of offsets), and
repeats it. It never asks whether that is safe: by the time it is called it is.

The contract between the two, which the manager checks and the device relies on:

1. *Bookkeeping follows the first run.* A warm-up or a capture really allocates and
   frees. A replay does not: it touches the same bytes as the captured run and leaves
   the allocator's books alone.
2. *Before anything is warmed up or captured after a replay*, the manager calls
   ``Pool.restore`` with the checkpoint that the last replayed node left, so the books
   say what memory says. After it, exactly the live storages are allocated.
3. *A storage handed to ``restore`` as live* frees its block when it dies, as an
   ordinary one does. A storage rebuilt by ``tensor_at`` owns nothing before that.
4. *``Checkpoint`` objects are opaque*, and stay valid for as long as the pool does:
   the same one is restored whenever another child of its node is recorded.
5. *Calls are boxed.* A model takes one list, and empties it so that inputs can die
   while it runs. Whoever calls one and needs the inputs afterwards keeps its own list.
6. *A failure leaves no trace.* If ``warm_up`` or ``capture`` raises, routing and
   capture have ended, and every block that the failed run allocated is freed as soon
   as the exception and its traceback are gone.

Where the two devices really differ, the difference is data and the manager branches
on it once, when a node is recorded:

* ``Device.address_bound``: a replay reads its inputs where the captured run read
  them. True for CUDA graphs: the manager then checks the addresses of static and
  managed inputs and copies all others into place before a replay. False where a replay
  is handed its inputs.
* ``CapturedRun.replay`` returns None if outputs are where they were when captured (the
  manager hands out tensors at those addresses), or the list of outputs if the replay
  made them. The second kind may contain memory outside the pool, which is then simply
  the user's and not managed by anyone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

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
    """All that is needed to rebuild a tensor over existing memory.

    Attributes:
        address: of the first byte of its storage.
        nbytes: of its storage.
        shape, stride, offset: in elements; ``offset`` from the start of the storage.
        dtype, device: of the tensor.
    """

    address: int
    nbytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(t: torch.Tensor) -> TensorSpec:
        """The description of ``t`` as it is now."""
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


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of a segment.

    Attributes:
        address: of its first byte.
        nbytes: bytes that the allocator set aside, rounding included.
        requested: bytes that were asked for; 0 if it is free.
        live: whether it is allocated.
        frames: ``(file, line, function)`` of the Python stack that allocated it, innermost first;
            () if it is free or that is unknown.
    """

    address: int
    nbytes: int
    requested: int
    live: bool
    frames: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of memory that the pool got from the system.

    Attributes:
        address: of its first byte.
        nbytes: its size; the sizes of ``blocks`` add up to it.
        blocks: by address, free ones included.
    """

    address: int
    nbytes: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One thing that the pool's allocator did.

    Attributes:
        alloc: whether it allocated; otherwise it freed.
        address: of the block.
        nbytes: bytes that were asked for.
        frames: ``(file, line, function)`` of the Python stack, innermost first; () if unknown.
    """

    alloc: bool
    address: int
    nbytes: int
    frames: tuple[tuple[str, int, str], ...] = ()


class CapturedRun(Protocol):
    """One run of a function that can be repeated.

    Attributes:
        outputs: what the captured run returned, in order. The manager takes the list
            and leaves None behind, so that outputs can die.
        launch: what ``replay`` comes down to where it looks at no inputs and returns None:
            then a replay calls this instead. After ``release`` it raises.
        ran: whether the captured run has computed its outputs. A CUDA graph has not:
            the manager replays it once.
    """

    outputs: list[Output] | None
    launch: Callable[[], object] | None
    ran: bool

    def replay(self, inputs: list[Input]) -> list[Output] | None:
        """Repeat it.

        Args:
            inputs: what the call got. Where ``Device.address_bound``, values have been
                copied into place already and ``inputs`` is not looked at. Otherwise it
                is emptied, as a model does.

        Returns:
            None if outputs are at the captured addresses, else the outputs.
        """

    def release(self) -> None:
        """Drop what the device holds for it. It is never replayed again. Idempotent."""


class Pool(Protocol):
    """Memory that the nodes of one manager share.

    All methods are called with the process-wide capture lock held, except
    ``tensor_at``, ``storage_at`` and ``CapturedRun.replay``, which are hot.

    Attributes:
        device: which one it lies on.
        handle: the allocator's own name for it: on CUDA a pair of integers, as
            ``torch.cuda.graph_pool_handle()`` gives.
        damaged: nothing more can be recorded in it: a failed capture has left it so, or memory in
            it is held that the manager does not know of. The manager drops what was recorded in
            it and takes a new one.
    """

    device: torch.device
    handle: Any
    damaged: bool

    def allocating(self) -> AbstractContextManager[None]:
        """Within it, allocations of the calling thread come out of this pool.

        Work is ordered after what the caller has enqueued, and what follows after it.
        """

    def warm_up(self, model: Model, inputs: list[Input]) -> list[Output]:
        """Run ``model`` for real, allocating from the pool; keep nothing.

        Raises:
            Exception: whatever the model raised, see point 6 of
                Note [Who does what: manager and device].
        """

    def capture(
        self, model: Model, inputs: list[Input], *, kernel_free: bool = False
    ) -> CapturedRun:
        """Run ``model`` so that it can be repeated.

        Args:
            model: what to run.
            kernel_free: it launches nothing.
            inputs: where ``Device.address_bound``, the tensors that replays will read:
                static and managed ones as they are, copies in the pool for the rest.
        """

    def checkpoint(self) -> Checkpoint:
        """The allocator's books as they are now."""

    def restore(
        self,
        checkpoint: Checkpoint,
        live: Sequence[StoragePointer],
        dead: Iterable[int],
    ) -> None:
        """Put the allocator's books back.

        Args:
            checkpoint: taken by ``checkpoint`` of this pool.
            live: storages, one for each block that was live at the checkpoint and still
                is. From here on they own their block. No two share an address.
            dead: addresses of the blocks that were live at the checkpoint and are not
                any more. They are freed.
        """

    def release_storage(self, storage: StoragePointer) -> None:
        """Free the block that ``storage`` owns, if it owns one, and let it dangle.

        Nothing reads through it again: ``invalidate`` follows.
        """

    def invalidate(
        self, tensor: torch.Tensor | None, storage: StoragePointer, message: str
    ) -> None:
        """Make every later use of ``storage``'s data raise ``RuntimeError(message)``.

        Args:
            tensor: the tensor that the user was given, if it still exists: its use
                raises as well, earlier than its storage's.
            storage: what it (and views of it) lie in.
            message: complete text.
        """

    def replace(self, tensor: torch.Tensor, twin: torch.Tensor, message: str) -> torch.Tensor:
        """Make every later use of ``tensor`` alone raise ``RuntimeError(message)``. Hot.

        It lets go of its storage. Another one like ``twin``, over the same storage, is cached in
        its place and returned.
        """

    def move_out(self, storage: StoragePointer) -> bool:
        """Give a live storage memory outside the pool, with the same content.

        All tensors over it see the new memory. The block in the pool is freed if
        ``storage`` owned it.

        Returns:
            False if the device cannot do that for this storage, or it has died meanwhile;
            nothing changed then.
        """

    def tensor_at(
        self, spec: TensorSpec, storage: torch.UntypedStorage | None = None
    ) -> torch.Tensor:
        """A tensor over memory of the pool, or over ``storage`` if one is given.

        Without ``storage`` it gets a storage of its own that owns nothing.
        """

    def extent(self) -> Callable[[int], bool]:
        """Whether an address lies in a segment that the pool has now. Not hot."""

    def live_addresses(self) -> set[int]:
        """Addresses of all allocated blocks."""

    def only_live(self, addresses: set[int]) -> bool:
        """Whether exactly the blocks at ``addresses`` are allocated. Cheap."""

    def observing(self) -> AbstractContextManager[list[AllocatorEvent]]:
        """Yields a list that holds, after the block, what the allocator did within it."""

    def segments(self) -> list[Segment]:
        """Everything the pool holds, by address."""

    def reserved_bytes(self) -> int:
        """Bytes that the pool has from the system: the sum over ``segments()``. May be
        cheaper than that."""

    def release(self) -> None:
        """Give up this handle. Memory goes back to the system when the last captured
        run and the last live block are gone too. Idempotent."""


class Device(Protocol):
    """A kind of device, as the manager sees it.

    Attributes:
        device: e.g. ``torch.device("cuda", 0)``.
        address_bound: see Note [Who does what: manager and device].
    """

    device: torch.device
    address_bound: bool

    def create_pool(self, initial_bytes: int = 0) -> Pool:
        """A fresh pool. With ``initial_bytes`` it starts with one free segment of at least
        that size."""

    def empty_cache(self) -> int:
        """Give memory that nobody uses, of released pools and of the general one, back to the
        system.

        Returns:
            Bytes that went back.
        """

    def unclaimed_bytes(self) -> int:
        """Bytes of the device that nobody has."""

    def available_bytes(self) -> int:
        """Bytes that code outside of any pool can have: ``unclaimed_bytes()``, and what it had
        before and let go of. Not hot."""

    def synchronize(self) -> None:
        """Wait until everything enqueued on the device is done."""

"""A CPU device for the tree manager: a double that lets tests run its decisions without CUDA.

Paths, steps, ledger and limits are as on CUDA, but what the manager is careful about cannot happen:
a "recording" is the function itself, a replay calls it, and its outputs are fresh memory that owns
itself (Note [Ownership on the CPU] in ``arena``). So to the manager none of them lies in the pool:
nothing has to be restored, freed or invalidated for it, and holding any output for any time is
fine. The pool is the arena's: a function that takes blocks from ``CpuPool.leases`` takes them at
each replay, and its tensors give them back when they die.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from memprof.compile_backend.cpu_arena.memory import LeasePool, Tokens
from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees import container
from memprof.cudagraph_trees.device.protocol import (
    AllocatorEvent,
    Checkpoint,
    Input,
    Model,
    Output,
    Segment,
    StoragePointer,
    TensorSpec,
)
from memprof.cudagraph_trees.settings import current_settings


class CpuRun:
    """A function that is called again; see ``protocol.CapturedRun``."""

    __slots__ = ("_model", "launch", "outputs", "ran")

    def __init__(self, model: Model, outputs: list[Output]) -> None:
        self._model: Model | None = model
        self.outputs: list[Output] | None = outputs
        self.launch: Callable[[], object] | None = None
        self.ran = True

    def replay(self, inputs: list[Input]) -> list[Output] | None:
        if self._model is None:
            raise RuntimeError("this recording was released; it cannot be replayed any more")
        return _call(self._model, inputs)

    def release(self) -> None:
        self._model = None


def _call(model: Model, inputs: list[Input]) -> list[Output]:
    outputs: Any = model(inputs)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


class CpuPool:
    """See ``protocol.Pool`` and the module's docstring.

    Attributes:
        leases: the arena's blocks.
    """

    def __init__(self, initial_bytes: int = 0) -> None:
        self.device = torch.device("cpu")
        self.leases = LeasePool(lambda: current_settings().pool_budget)
        self.handle = (0, id(self.leases))
        self.damaged = False
        # Kept until ``release``: without a user, a pool keeps nothing that is free.
        self._user: object | None = type("PoolUser", (), {})()
        self.leases.add_user(self._user)
        if initial_bytes:
            self.leases.lease(initial_bytes, Tokens(1))  # dies at once; the segment stays

    def allocating(self) -> AbstractContextManager[None]:
        """Does nothing: a replay is handed its inputs, so there is none to be copied."""
        return contextlib.nullcontext()

    def warm_up(self, model: Model, inputs: list[Input]) -> list[Output]:
        return _call(model, inputs)

    def capture(self, model: Model, inputs: list[Input], *, kernel_free: bool = False) -> CpuRun:
        return CpuRun(model, _call(model, inputs))

    def checkpoint(self) -> Checkpoint:
        """None: blocks own themselves, so the books are always right."""
        return None

    def restore(
        self, checkpoint: Checkpoint, live: Sequence[StoragePointer], dead: Iterable[int]
    ) -> None:
        pass

    def release_storage(self, storage: StoragePointer) -> None:
        pass

    def invalidate(
        self, tensor: torch.Tensor | None, storage: StoragePointer, message: str
    ) -> None:
        """Does nothing: the memory is not reused for as long as somebody holds it."""

    def replace(self, tensor: torch.Tensor, twin: torch.Tensor, message: str) -> torch.Tensor:
        """``tensor`` can be used all the same, as above."""
        return compat.another(tensor, twin)

    def move_out(self, storage: StoragePointer) -> bool:
        """True: it depends on nothing that the pool does."""
        return True

    def tensor_at(
        self, spec: TensorSpec, storage: torch.UntypedStorage | None = None
    ) -> torch.Tensor:
        if storage is None:
            storage = compat.storage_at(spec.address, spec.device, spec.nbytes)
        offset = spec.offset * spec.dtype.itemsize
        return compat.tensor_in_storage(storage, offset, spec.shape, spec.stride, spec.dtype)

    def extent(self) -> Callable[[int], bool]:
        """Nothing: the manager has to watch no memory here, see the module's docstring."""
        return lambda address: False

    def live_addresses(self) -> set[int]:
        """None, for the same reason; ``segments`` shows the blocks that are out."""
        return set()

    def only_live(self, addresses: set[int]) -> bool:
        return not addresses

    @contextlib.contextmanager
    def observing(self) -> Iterator[list[AllocatorEvent]]:
        """Yields an empty list: programs of CPU graphs come from the backend's observation."""
        yield []

    def segments(self) -> list[Segment]:
        return self.leases.segments()

    def reserved_bytes(self) -> int:
        return self.leases.reserved_bytes

    def release(self) -> None:
        self._user = None


class CpuDevice:
    """See ``protocol.Device``."""

    address_bound = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def create_pool(self, initial_bytes: int = 0) -> CpuPool:
        return CpuPool(initial_bytes)

    def empty_cache(self) -> int:
        """Does nothing: a released pool keeps nothing."""
        return 0

    def unclaimed_bytes(self) -> int:
        return sys.maxsize

    def available_bytes(self) -> int:
        return sys.maxsize

    def synchronize(self) -> None:
        pass


container.DEVICES["cpu"] = lambda device: CpuDevice()

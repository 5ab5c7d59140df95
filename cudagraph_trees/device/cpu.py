"""The CPU: nothing is captured, and every tensor owns its memory.

Note [Trees on the CPU]
~~~~~~~~~~~~~~~~~~~~~~~
The manager runs on the CPU with the same paths, steps, ledger and limits as on CUDA, but
what it is careful about cannot happen there: a "recording" is the function itself, a
replay calls it, and its outputs are fresh memory that owns itself (Note [Ownership on the
CPU] in ``arena``). So to the manager none of them lies in the pool: nothing has to be
restored, freed or invalidated for it, and holding any output for any time is fine.

The pool is the arena's: a function that takes blocks from ``CpuPool.leases`` (as those do
that ``compile_backend/cpu_arena`` rewrites) takes them at each replay and its tensors
give them back when they die. The backend does not go through the manager for its CPU
graphs, see Note [Why CPU graphs do not go through the tree manager] there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from .. import _torch_compat as compat
from ..arena import LeasePool, Tokens
from ..settings import current_settings
from .protocol import AllocatorEvent, Checkpoint, Input, Output, Segment, StoragePointer, TensorSpec

if TYPE_CHECKING:
    from ..function import Function


class CpuRun:
    """A function that is called again; see ``protocol.CapturedRun``."""

    __slots__ = ("_function", "launch", "outputs", "ran")

    def __init__(self, function: Function, outputs: list[Output]) -> None:
        self._function: Function | None = function
        self.outputs: list[Output] | None = outputs
        self.launch: Callable[[], object] | None = None
        self.ran = True

    def replay(self, inputs: list[Input]) -> list[Output] | None:
        if self._function is None:
            raise RuntimeError("this recording was released; it cannot be replayed any more")
        return _call(self._function, inputs)

    def release(self) -> None:
        self._function = None


def _call(function: Function, inputs: list[Input]) -> list[Output]:
    outputs: Any = function.model(inputs)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


class CpuPool:
    """See ``protocol.Pool`` and Note [Trees on the CPU].

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

    def warm_up(self, function: Function, inputs: list[Input]) -> list[Output]:
        return _call(function, inputs)

    def capture(self, function: Function, inputs: list[Input]) -> CpuRun:
        return CpuRun(function, _call(function, inputs))

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

    def invalidate_tensor(self, tensor: torch.Tensor, message: str) -> None:
        """Does nothing, as above."""

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
        """Nothing: the manager has to watch no memory here, see Note [Trees on the CPU]."""
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

    def empty_cache(self) -> None:
        """Does nothing: a released pool keeps nothing."""

    def synchronize(self) -> None:
        pass

"""What happens when a warm-up or a recording fails.

Note [Calling again after a failure]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Models empty their list of inputs so that these can die while they run, and a recording
must see them die. So what is kept to make the call again must not keep memory of the pool
alive:

* inputs outside the pool are kept: nothing is allocated in their memory meanwhile;
* inputs in the pool are kept as a description. A failed *recording* has run no kernel, so
  the bytes are still there: the input is had again over its storage if somebody holds that,
  and otherwise copied, since the call may return it (a forward returns what its backward needs);
* a failed *warm-up* has run kernels. Inputs in the pool that died in it may have been
  overwritten, and inputs that it writes to may have been written to. So copies of both are
  made before, outside the pool, of those that are written to first: up to ``MAX_BACKUP_BYTES``
  in all, and only if there is memory for them. A larger input that was needed again cannot be
  had; then the error goes to the user, and says so. Copying more, or keeping the inputs
  alive, would make each step that warms up need more memory than the same step ever needs
  again, and so fail where it need not.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import TensorWeakRef

from . import _torch_compat as compat
from .device.protocol import Input, Pool, TensorSpec
from .inputs import address_of, inputs_again
from .storage_ref import StorageWeakRefWrapper

if TYPE_CHECKING:
    from .function import Function

MAX_BACKUP_BYTES = 64 << 20
"""So much of its inputs is copied before a warm-up, see Note [Calling again after a failure]."""

_WHAT_TO_DO = (
    "What to do: if memory ran out, make the batch smaller, or leave CUDA graphs off for this "
    'model (options={"graphs": False} of memprof\'s backend, or another mode than '
    '"reduce-overhead"); otherwise the error above is the program\'s own'
)


class Unrecoverable(Exception):
    """The call cannot be made again; the text says why."""


def let_go_of_frames(error: BaseException) -> None:
    """Frames of a failed run hold its tensors, and those hold blocks of the pool."""
    e: BaseException | None = error
    while e is not None:
        traceback.clear_frames(e.__traceback__)
        e = e.__context__
    gc.collect()


@dataclass(slots=True)
class Attempt:
    """What it takes to make a call again.

    Attributes:
        inputs: those outside the pool; None for tensors in it.
        device: the one that has a generator.
        pool: where a recording is made.
        in_pool: descriptions of those in the pool.
        weak: those in the pool, before a warm-up.
        refs: storages of those in the pool, before a recording.
        storages: copies of the storages of those in the pool, by address.
        backup: copies of what a warm-up writes to, by input.
        lost: why that could not be copied, "" if it was.
        rng: state of the device's generator before a warm-up.
        host_rng: state of the host's.
    """

    inputs: list[Input]
    device: torch.device | None = None
    pool: Pool | None = None
    in_pool: dict[int, TensorSpec] = field(default_factory=dict)
    weak: dict[int, TensorWeakRef] = field(default_factory=dict)
    refs: dict[int, StorageWeakRefWrapper] = field(default_factory=dict)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    backup: dict[int, torch.Tensor] = field(default_factory=dict)
    lost: str = ""
    rng: torch.Tensor | None = None
    host_rng: torch.Tensor | None = None

    @staticmethod
    def recording(
        function: Function, inputs: list[Input], pool_addresses: set[int], pool: Pool
    ) -> Attempt:
        """Before a recording."""
        out = Attempt(list(inputs), pool=pool)
        out._describe(pool_addresses)
        out.refs = {i: StorageWeakRefWrapper(inputs[i]) for i in out.in_pool}
        return out

    @staticmethod
    def warm_up(function: Function, inputs: list[Input], pool_addresses: set[int]) -> Attempt:
        """Before a warm-up, or a recording that computes what it records."""
        out = Attempt(list(inputs))
        out.device = next(
            (x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda), None
        )
        out._describe(pool_addresses)
        out.weak = {i: TensorWeakRef(inputs[i]) for i in out.in_pool}
        left = out._copy_written(function.mutated_input_idxs, inputs)
        out._copy_storages(inputs, left)
        if out.device is not None:
            out.rng = compat.rng_state(out.device)
        out.host_rng = torch.get_rng_state()
        return out

    def _describe(self, pool_addresses: set[int]) -> None:
        """Keep descriptions of inputs in the pool in the place of the inputs."""
        for i, x in enumerate(self.inputs):
            if isinstance(x, torch.Tensor) and address_of(x) in pool_addresses:
                self.in_pool[i] = TensorSpec.of(x)
                self.inputs[i] = None

    def _copy_written(self, which: Sequence[int], inputs: list[Input]) -> int:
        """Copy what the function writes to, if it is not too much. Returns the bytes left."""
        written = {i: inputs[i] for i in which if isinstance(inputs[i], torch.Tensor)}
        nbytes: int = sum(t.untyped_storage().nbytes() for t in written.values())
        if nbytes > MAX_BACKUP_BYTES:
            self.lost = f"with {nbytes} bytes too large to have been copied before"
            return MAX_BACKUP_BYTES
        try:
            self.backup = {i: t.clone() for i, t in written.items()}
        except torch.OutOfMemoryError:
            self.lost = "which there was no memory to copy before"
        return MAX_BACKUP_BYTES - nbytes

    def _copy_storages(self, inputs: list[Input], left: int) -> None:
        """Copy storages in the pool, as many as fit in ``left`` bytes and in memory."""
        for i, spec in self.in_pool.items():
            if spec.address in self.storages or spec.nbytes > left:
                continue
            try:
                self.storages[spec.address] = inputs[i].untyped_storage().clone()
            except torch.OutOfMemoryError:
                return
            left -= spec.nbytes

    def succeeded(self) -> None:
        """It is not needed."""
        self.inputs.clear()
        self.backup.clear()
        self.storages.clear()

    def inputs_again(self, error: Exception) -> list[Input]:
        """The inputs as they were.

        Raises:
            Unrecoverable: that cannot be had.
        """
        let_go_of_frames(error)
        if self.pool is not None:
            try:
                found = inputs_again(self.pool, self.in_pool, self.refs)
            except torch.OutOfMemoryError as e:
                raise Unrecoverable(
                    "the call cannot be made again without a graph: there is no memory to copy "
                    f"inputs that died in the recording. {_WHAT_TO_DO}"
                ) from e
            for i, t in found.items():
                self.inputs[i] = t
            return self.inputs
        if self.lost:
            raise Unrecoverable(
                "the call cannot be made again without a graph: the failed warm-up may have "
                f"written to its inputs, {self.lost}. {_WHAT_TO_DO}"
            )
        self._find_again()
        for i, copy in self.backup.items():
            self.inputs[i].copy_(copy)
        if self.rng is not None and self.device is not None:
            compat.set_rng_state(self.rng, self.device)
        if self.host_rng is not None:
            torch.set_rng_state(self.host_rng)
        return self.inputs

    def _find_again(self) -> None:
        """Inputs in the pool after a failed warm-up."""
        # One that is alive keeps the memory of those that share its storage.
        alive: dict[int, torch.UntypedStorage] = {}
        for i, ref in self.weak.items():
            t = self.inputs[i] = ref()
            if t is not None:
                alive[self.in_pool[i].address] = t.untyped_storage()
        for i, spec in self.in_pool.items():
            if self.inputs[i] is not None:
                continue
            storage = alive.get(spec.address, self.storages.get(spec.address))
            if storage is None:
                raise Unrecoverable(
                    "the call cannot be made again without a graph: input "
                    f"{i}, {spec.nbytes} bytes that an earlier graph made, was released during "
                    "the failed warm-up, and it was too large, or memory too short, to have been "
                    f"copied before. {_WHAT_TO_DO}"
                )
            empty = torch.empty(0, dtype=spec.dtype, device=spec.device)
            self.inputs[i] = empty.set_(storage, spec.offset, spec.shape, spec.stride)

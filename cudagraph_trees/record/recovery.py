"""Recovery from a warm-up or a recording that fails.

Note [Calling again after a failure]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Models empty their list of inputs so that these can die while they run. What is kept to make the
call again must not keep device memory alive that the call itself would let go of, nor take any:
a job that fits a device must fit with its calls being backed up. So:

* every tensor is kept as a weak reference and a description. Static inputs of a forward outlive
  the call anyway; those of a backward are what was saved for it, and may die in it;
* a failed *recording* has run no kernel. Inputs that it copied are had again from the copies, and
  inputs in the pool over their storage if somebody holds that, or from the bytes, which are still
  there (a forward returns what its backward needs, so one that died may be needed). What a
  backward reads where it lies outside of the pool is kept: a capture takes no memory there;
* a failed *warm-up* has run kernels. Inputs that died in it may have been overwritten, and inputs
  that it writes to may have been written to. So the storages of both are copied to the host before,
  of those that are written to first, then the smallest: up to ``MAX_BACKUP_BYTES`` in all. A larger
  input that was needed again and has died cannot be had; then the error goes to the user, and says
  so.

Generators of random numbers are put back after either, see Note [Random numbers].
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Set

import torch
from torch.utils.weak import TensorWeakRef

from .. import _torch_compat as compat
from ..device.cuda import CudaPool, GeneratorStates
from ..device.protocol import Input, TensorSpec
from ..replay.inputs import inputs_again
from ..replay.liveness import StorageWeakRefWrapper
from ..replay.spec import CompilationMode, FunctionSpec

MAX_BACKUP_BYTES = 64 << 20
"""Most bytes of inputs copied before a warm-up, see Note [Calling again after a failure]."""


def too_much_to_copy(function: FunctionSpec, inputs: list[Input]) -> int:
    """Bytes of inputs that ``function`` writes to if they are too many to be copied, else 0."""
    written = (inputs[i] for i in function.mutated)
    nbytes = sum(TensorSpec.of(x).nbytes for x in written if isinstance(x, torch.Tensor))
    return nbytes if nbytes > MAX_BACKUP_BYTES else 0


def _let_go_of_frames(error: BaseException) -> None:
    """Frames of a failed run hold its tensors, and those hold blocks of the pool."""
    e: BaseException | None = error
    while e is not None:
        traceback.clear_frames(e.__traceback__)
        e = e.__context__
    gc.collect()


class InputBackup:
    """Copies and references from which a failed call is made again.

    Attributes:
        inputs: what is no tensor; None for tensors.
        specs, weak: the tensors, by input: descriptions, and weak references.
        in_pool: those that lie in the pool.
        pool: where a recording is made, None before what runs kernels.
        refs: before a recording, the storages of those in the pool.
        kept: before a recording, those that it reads where they lie and that may die in it.
        buffers: where a recording has its copies of inputs, once they are made.
        storages: before what runs kernels, copies of storages on the host, by address.
        written: addresses of storages that the call writes to.
    """

    def __init__(self, inputs: list[Input], pool_addresses: Set[int], device: torch.device) -> None:
        tensors = {i: x for i, x in enumerate(inputs) if isinstance(x, torch.Tensor)}
        self.inputs = [None if i in tensors else x for i, x in enumerate(inputs)]
        self.generators = GeneratorStates(device, inputs)
        self.specs = {i: TensorSpec.of(x) for i, x in tensors.items()}
        self.weak = {i: TensorWeakRef(x) for i, x in tensors.items()}
        self.in_pool = {i for i, spec in self.specs.items() if spec.address in pool_addresses}
        self.pool: CudaPool | None = None
        self.refs: dict[int, StorageWeakRefWrapper] = {}
        self.kept: list[torch.Tensor] = []
        self.buffers: dict[int, TensorSpec] = {}
        self.storages: dict[int, torch.Tensor] = {}
        self.written: set[int] = set()

    @staticmethod
    def recording(
        function: FunctionSpec, inputs: list[Input], pool_addresses: set[int], pool: CudaPool
    ) -> InputBackup:
        out = InputBackup(inputs, pool_addresses, pool.device)
        out.pool = pool
        out.refs = {i: StorageWeakRefWrapper(inputs[i]) for i in out.in_pool}
        if function.mode is CompilationMode.BACKWARD:
            static = set(function.static) & out.specs.keys() - out.in_pool
            out.kept = [inputs[i] for i in static]
        return out

    @staticmethod
    def warm_up(
        function: FunctionSpec, inputs: list[Input], pool_addresses: set[int], device: torch.device
    ) -> InputBackup:
        """Before a warm-up on ``device``, which does not write ``too_much_to_copy``."""
        out = InputBackup(inputs, pool_addresses, device)
        written = {i for i in function.mutated if i in out.specs}
        out.written = {out.specs[i].address for i in written}
        left = out._copy(written, inputs, MAX_BACKUP_BYTES)
        backward = function.mode is CompilationMode.BACKWARD
        static = set() if backward else set(function.static) - out.in_pool
        out._copy(out.specs.keys() - written - static, inputs, left)
        return out

    def _copy(self, which: Set[int], inputs: list[Input], left: int) -> int:
        """Copy storages of these inputs to the host, the smallest first, as many as fit in ``left``
        bytes. Returns the bytes left."""
        for i in sorted(which, key=lambda i: self.specs[i].nbytes):
            spec = self.specs[i]
            if spec.address in self.storages:
                continue
            if spec.nbytes > left:
                break
            self.storages[spec.address] = _bytes_of(inputs[i].untyped_storage().cpu())
            left -= spec.nbytes
        return left

    def give_up(self, error: BaseException) -> None:
        """The call is not made again: put generators back, and let go of what it held."""
        try:
            self.generators.restore()
        except Exception as e:
            compat.log.warning("no generator was put back: %s: %s", type(e).__name__, e)
        _let_go_of_frames(error)

    def succeeded(self) -> None:
        """The call need not be made again, or is: let go of what was kept for that."""
        self.storages.clear()
        self.kept.clear()

    def call_again(self, error: Exception) -> list[Input]:
        """Restore all that the call reads, and return its inputs as they were.

        Raises:
            Exception: that cannot be had, for whatever reason.
        """
        _let_go_of_frames(error)
        self.generators.restore()
        if self.pool is not None:
            self._find_after_recording(self.pool)
        else:
            self._find_after_warm_up()
        # They die in the call that is made with them.
        found, self.inputs = self.inputs, []
        self.succeeded()
        return found

    def _find_after_recording(self, pool: CudaPool) -> None:
        in_pool = {i: self.specs[i] for i in self.in_pool}
        found = inputs_again(pool, in_pool, self.refs)
        for i in self.specs.keys() - self.in_pool:
            t = self.weak[i]()
            if t is not None:
                found[i] = t
        copied = {i: spec for i, spec in self.buffers.items() if i not in found}
        found |= inputs_again(pool, copied, {})
        for i, spec in self.specs.items():
            if i not in found:
                raise _died(i, spec, "recording", "it was not copied")
            self.inputs[i] = found[i]

    def _find_after_warm_up(self) -> None:
        # One that is alive keeps the memory of those that share its storage.
        storages: dict[int, torch.UntypedStorage] = {}
        for i, ref in self.weak.items():
            t = self.inputs[i] = ref()
            if t is not None:
                storages[self.specs[i].address] = t.untyped_storage()
        for address in self.written & storages.keys():
            _bytes_of(storages[address]).copy_(self.storages[address])
        for i, spec in self.specs.items():
            if self.inputs[i] is not None:
                continue
            if spec.address not in storages:
                if spec.address not in self.storages:
                    raise _died(i, spec, "warm-up", "it was too large to have been copied before")
                copy = self.storages[spec.address].to(spec.device, copy=True)
                storages[spec.address] = copy.untyped_storage()
            empty = torch.empty(0, dtype=spec.dtype, device=spec.device)
            storage = storages[spec.address]
            self.inputs[i] = empty.set_(storage, spec.offset, spec.shape, spec.stride)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _died(i: int, spec: TensorSpec, what: str, why: str) -> MemoryError:
    return MemoryError(
        f"input {i}, {spec.nbytes} bytes, was released during the failed {what}, and {why}"
    )

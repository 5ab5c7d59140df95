"""What happens when a warm-up or a recording fails.

Note [Calling again after a failure]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Models empty their list of inputs so that these can die while they run, and a recording
must see them die. So what is kept to make the call again must not keep memory of the pool
alive:

* inputs outside the pool are kept: nothing is allocated in their memory meanwhile;
* inputs in the pool are kept as a description. A failed *recording* has run no kernel, so
  the bytes are still there, and a tensor over them is as good as the input was;
* a failed *warm-up* has run kernels. Inputs in the pool that died in it may have been
  overwritten. If all of them are still alive the call can be made again; otherwise, and
  if inputs that it writes to are too large to have been copied before, it cannot, and the
  error goes to the user.
"""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import TensorWeakRef

from . import _torch_compat as compat
from .device.protocol import Input, Pool, TensorSpec
from .inputs import address_of

if TYPE_CHECKING:
    from .function import Function

MAX_BACKUP_BYTES = 64 << 20
"""Inputs that a warm-up writes to are copied before up to this many bytes in all."""


class Unrecoverable(Exception):
    """The call cannot be made again; the text says why."""


@dataclass(slots=True)
class Attempt:
    """What it takes to make a call again.

    Attributes:
        inputs: those outside the pool; None for tensors in it.
        in_pool: descriptions of those in the pool, for a recording.
        weak: those in the pool, for a warm-up.
        backup: copies of what a warm-up writes to, by input.
        too_large: it writes to more than was copied.
        rng: state of the device's generator before a warm-up.
    """

    inputs: list[Input]
    device: torch.device | None = None
    pool: Pool | None = None
    in_pool: dict[int, TensorSpec] = field(default_factory=dict)
    weak: dict[int, TensorWeakRef] = field(default_factory=dict)
    backup: dict[int, torch.Tensor] = field(default_factory=dict)
    too_large: bool = False
    rng: torch.Tensor | None = None

    @staticmethod
    def recording(
        function: Function, inputs: list[Input], pool_addresses: set[int], pool: Pool
    ) -> Attempt:
        """Before a recording."""
        out = Attempt(list(inputs), pool=pool)
        for i, x in enumerate(inputs):
            if isinstance(x, torch.Tensor) and address_of(x) in pool_addresses:
                out.in_pool[i] = TensorSpec.of(x)
                out.inputs[i] = None
        return out

    @staticmethod
    def warm_up(function: Function, inputs: list[Input], pool_addresses: set[int]) -> Attempt:
        """Before a warm-up."""
        out = Attempt(list(inputs))
        for i, x in enumerate(inputs):
            if isinstance(x, torch.Tensor):
                if x.is_cuda:
                    out.device = x.device
                if address_of(x) in pool_addresses:
                    out.weak[i] = TensorWeakRef(x)
                    out.inputs[i] = None
        written = [inputs[i] for i in function.mutated_input_idxs]
        nbytes = sum(t.untyped_storage().nbytes() for t in written if isinstance(t, torch.Tensor))
        if nbytes <= MAX_BACKUP_BYTES:
            out.backup = {i: inputs[i].clone() for i in function.mutated_input_idxs}
        else:
            out.too_large = True
        if out.device is not None:
            out.rng = compat.rng_state(out.device)
        return out

    def succeeded(self) -> None:
        """It is not needed."""
        self.inputs.clear()
        self.backup.clear()

    def inputs_again(self, error: Exception) -> list[Input]:
        """The inputs as they were.

        Raises:
            Unrecoverable: that cannot be had.
        """
        # Frames of the failed run hold its tensors, and those hold blocks of the pool.
        e: BaseException | None = error
        while e is not None:
            traceback.clear_frames(e.__traceback__)
            e = e.__context__
        gc.collect()
        inputs = self.inputs
        for i, spec in self.in_pool.items():
            assert self.pool is not None
            inputs[i] = self.pool.tensor_at(spec)
        for i, ref in self.weak.items():
            t = ref()
            if t is None:
                raise Unrecoverable(
                    f"input {i} was released during the failed warm-up, so the call cannot be "
                    "made again without a graph"
                )
            inputs[i] = t
        if self.too_large:
            raise Unrecoverable(
                "the failed warm-up may have written to its inputs, which are too large to "
                "have been copied before, so the call cannot be made again without a graph"
            )
        for i, copy in self.backup.items():
            inputs[i].copy_(copy)
        if self.rng is not None and self.device is not None:
            compat.set_rng_state(self.rng, self.device)
        return inputs

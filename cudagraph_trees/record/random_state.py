"""The random state of attention, which is on the host where it runs and on the device in a graph.

Note [Random state on two devices]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Attention with dropout gives its backward a seed and an offset. Where it runs, they are tensors of
the host; where it is captured, of the device, so that replays can change them (Note [Seed and
Offset Device] in ATen's ``attention.cu``). Its backward reads them in the same way: by their
address on the host, or by a kernel. Two things follow for calls that are no replays.

* A backward that runs after a forward was recorded, or replayed, gets addresses of the device that
  it would read on the host. So before such a call whatever is known to be a random state is brought
  to the host: inputs that were on the host in an earlier call of the function, outputs of the path
  whose recording's warm-up had them on the host, and those of which we know the original.
* A checkpoint that is not reentrant compares what it saved with what the recomputation saves,
  devices too, and one may be a replay and the other not. So within such a checkpoint a random state
  is always one of the device, and its original is kept for as long as that lives: a backward that
  runs gets the original, without waiting for the device.

Compiled autograd's backwards are functions without a gradient of their own, so every function is
looked after. Not known is a state whose recording is gone by the time that its backward runs, and
one of a function that was never warmed up (``skip_cudagraph_warmup``): there the backward must be
recorded, as with torch's trees.
"""

from __future__ import annotations

from typing import TypeGuard

import torch

from memprof.profiler.model import Role

from .. import _torch_compat as compat
from ..device.protocol import Input, Output
from ..replay.liveness import StorageWeakRefWrapper, address_of
from ..replay.node import path_to
from ..replay.path import TreePath
from ..replay.spec import CompilationMode, FunctionSpec

_DTYPES = (torch.int64, torch.uint64)
_MAX_NUMEL = 2
"""A seed and an offset, or both in one tensor."""


class RandomStates:
    """Knows which tensors are random states, for the calls of a manager that are no replays."""

    def __init__(self, path: TreePath) -> None:
        self._path = path
        self._originals: list[tuple[StorageWeakRefWrapper, torch.Tensor]] = []

    def to_host(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """Before ``function`` runs: random states among its inputs come to the host, in place."""
        self._originals = [(ref, t) for ref, t in self._originals if not ref.expired()]
        on_host = function.state.host_inputs
        for i, t in enumerate(inputs):
            if not _may_be_state(t):
                continue
            if not t.is_cpu:
                original = self._original(t)
                if original is None and i not in on_host and not self._is_on_path(t):
                    continue
                inputs[i] = t.cpu() if original is None else original
            on_host.add(i)

    def ran(self, function: FunctionSpec, outputs: list[Output], device: torch.device) -> None:
        """After ``function`` ran: what it returned on the host is noted, and in a checkpoint
        replaced, in place, by tensors on ``device``."""
        if function.mode is not CompilationMode.FORWARD:
            return
        found = [i for i, o in enumerate(outputs) if _may_be_state(o) and o.is_cpu]
        if known := function.description.outputs:
            found = [i for i in found if known[i].role is Role.SAVED_FOR_BACKWARD]
        if not found:
            return
        function.state.host_outputs.update(found)
        if not compat.in_checkpoint():
            return
        for i in found:
            original = outputs[i]
            assert isinstance(original, torch.Tensor)
            moved = outputs[i] = original.to(device)
            self._originals.append((StorageWeakRefWrapper(moved), original))

    def _original(self, t: torch.Tensor) -> torch.Tensor | None:
        address = address_of(t)
        for ref, original in self._originals:
            if ref.address == address and not ref.expired():
                return original
        return None

    def _is_on_path(self, t: torch.Tensor) -> bool:
        """Tells whether a recording of the path has it instead of a tensor on the host."""
        address = address_of(t)
        return any(
            (r := n.outputs_weakrefs[i]) is not None and r.address == address and not r.expired()
            for n in path_to(self._path.node)
            for i in n.wrapped_function.state.host_outputs
        )


def _may_be_state(t: Input | Output) -> TypeGuard[torch.Tensor]:
    return isinstance(t, torch.Tensor) and t.dtype in _DTYPES and 0 < t.numel() <= _MAX_NUMEL

"""Tensors that gradients are for, where gradients can leave the pool only through them.

See Note [The end of a step]: only torch that cannot swap the memory of a storage needs this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from . import _torch_compat as compat
from .device.protocol import Input
from .spec import CompilationMode, FunctionSpec


class ParameterRefs:
    """The parameters that forwards of one manager were recorded with, and other leaves that they
    were called with, as long as they live."""

    def __init__(self) -> None:
        # Entries go when their parameter does.
        self._refs = WeakTensorKeyDictionary()

    def remember(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """Keep the leaves among the inputs of a forward that is about to be recorded. Those that
        are no static inputs may be others, or no leaves, at each call: ``FunctionSpec.leaves``."""
        if compat.can_swap_storage() or function.mode is not CompilationMode.FORWARD:
            return
        self._keep(inputs, function.static_input_idxs)
        function.leaves = tuple(
            i
            for i in function.loose
            if isinstance(inputs[i], torch.Tensor) and inputs[i].requires_grad
        )

    def remember_leaves(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """Keep those that a replay is called with."""
        self._keep(inputs, function.leaves)

    def _keep(self, inputs: list[Input], which: Sequence[int]) -> None:
        for i in which:
            t = inputs[i]
            if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad:
                self._refs[t] = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(list(self._refs))

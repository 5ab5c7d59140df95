"""Parameters that recordings read, where gradients can leave the pool only through them.

See Note [The end of a step]: only torch that cannot swap the memory of a storage needs this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from . import _torch_compat as compat
from .spec import CompilationMode

if TYPE_CHECKING:
    from .device.protocol import Input
    from .spec import FunctionSpec


class ParameterRefs:
    """The parameters that forwards of one manager were recorded with, as long as they live."""

    def __init__(self) -> None:
        # Entries go when their parameter does.
        self._refs = WeakTensorKeyDictionary()

    def remember(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """Keep the parameters among the inputs of a forward that is about to be recorded."""
        if compat.can_swap_storage() or function.mode is not CompilationMode.FORWARD:
            return
        for i in function.static_input_idxs:
            t = inputs[i]
            if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad:
                self._refs[t] = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(list(self._refs))

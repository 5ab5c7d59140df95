"""What captured graphs call where a gradient may not arrive.

Note [Gradients that may be None]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An autograd.Function may return None for an input that requires grad. At capture nobody
knows, so the engine walks on as if there were a gradient. C++ nodes and accumulations take
None and hand it on, and so do both sides of CopySlices, the node of a view that was written in
place. What does not is given something else, for whatever may come from an
autograd.Function: an addition returns its other argument, and an autograd.Function or
AOTAutograd's graph gets zeros, as from the normal engine (also a function that called
``set_materialize_grads(False)``: nobody can ask whether it did).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _torch_compat


def add_gradients(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    """Called from captured graphs: the sum of what arrived."""
    if a is None:
        return b
    return a if b is None else torch.add(a, b)


def zeros_for_none(
    gradient: torch.Tensor | None,
    sizes: list[int],
    dtype: torch.dtype | None,
    device: torch.device,
) -> torch.Tensor:
    """Called from captured graphs: ``gradient``, or the zeros that stand for it."""
    if gradient is None:
        return torch.zeros(sizes, dtype=dtype, device=device)
    return gradient


def copy_slices_prologue_or_none(
    gradients: list[torch.Tensor | None], *geometry: Any
) -> Sequence[torch.Tensor | None]:
    """Called from captured graphs: nothing for the view where the base gets no gradient."""
    if gradients[0] is None:
        return [None, None, None]
    parts: list[torch.Tensor] = _torch_compat.copy_slices_prologue(gradients, *geometry)
    return parts


def copy_slices_epilogue_or_none(
    needs_input_grad: list[bool],
    result: torch.Tensor | None,
    computed: list[torch.Tensor | None],
    grad_slice: torch.Tensor | None,
) -> Sequence[torch.Tensor | None]:
    """Called from captured graphs: nothing where the base gets no gradient.

    Not even what an autograd.Function made of zeros, which the engine would not have called.
    """
    if result is None:
        return [None] * len(needs_input_grad)
    parts: list[torch.Tensor | None] = _torch_compat.copy_slices_epilogue(
        needs_input_grad, result, computed, grad_slice
    )
    return parts

"""What is known at capture of the memory of a node's value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils.weak import WeakIdKeyDictionary

from . import _torch_compat, _torch_fakes

META = "autograd_value"
"""Key of a node's ``ValueInfo`` in its ``meta``."""
INPUT_GROUP = "autograd_input_group"
"""Key in ``meta`` of ``inputs[i]``: a number that inputs sharing a storage have in common."""
TENSOR_NAME = "autograd_tensor_name"
"""Key in ``meta`` of ``inputs[i]``: the tensor's name in ``NAMES``, if it has one."""
HAS_GRADIENT = "autograd_has_gradient"
"""Key in ``meta`` of a leaf among the inputs which has a gradient until now."""
GRADIENT_GROUP = "autograd_gradient_group"
"""Key in ``meta`` of a parameter among the inputs: the same number of its gradient until now."""

SUM_OF_GRADIENTS = "autograd_sum_of_gradients"
"""Key in ``meta`` of the sum of two gradients that arrive at one place."""
LIFTED_FROM = "autograd_lifted_from"
"""Key in ``meta`` of what is read from an argument: the ``NodeOrigin`` of the autograd node that
it was lifted from, if C++ was asked to say so (``TORCH_LOGS=compiled_autograd_verbose``)."""
LAYOUT = "autograd_layout"
"""Key in ``meta`` of ``inputs[i]``: the layout of the tensor, or of its gradient until now, if
that is not strided."""


NAMES: Any = WeakIdKeyDictionary()
"""Names of tensors of this process, which are not kept alive. The engine hands over parameters
without names; a backend that compiled the forward has seen them under theirs and puts them here."""


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """Memory of one value, as far as it is known before anything ran.

    Attributes:
        nbytes: bytes of the tensor, None if unknown.
        device: where it lies.
        shape: one entry a dimension; numbers at the sizes of the capture.
        dtype: None if unknown.
        persistent: something outside the graph holds it (a parameter, a gradient).
        exact: the value has this shape, dtype and device at every run of the graph.
    """

    nbytes: int | None
    device: torch.device
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    persistent: bool = False
    exact: bool = False


def of_sizes(
    sizes: Sequence[Any],
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    persistent: bool = False,
    exact: bool = False,
) -> ValueInfo:
    """A dense tensor; bytes are those of its elements.

    Args:
        sizes: numbers or symbols.
        exact: the sizes are certain; not so if one is a symbol.
    """
    hints = tuple(_torch_fakes.hint(s) for s in sizes)
    shape = tuple(s for s in hints if s is not None)
    if len(shape) < len(hints) or dtype is None:
        return ValueInfo(None, device, dtype=dtype, persistent=persistent)
    exact = exact and all(isinstance(s, int) for s in sizes)
    return ValueInfo(math.prod(shape) * dtype.itemsize, device, shape, dtype, persistent, exact)


def of_tensor(tensor: torch.Tensor, *, persistent: bool = False, exact: bool = False) -> ValueInfo:
    """From a tensor, real or fake; two views of one storage count as two tensors."""
    return of_sizes(tensor.shape, tensor.dtype, tensor.device, persistent=persistent, exact=exact)


def of_output(metadata: Any) -> ValueInfo | None:
    """From what C++ demands of a gradient that an autograd node hands on."""
    found = _torch_compat.output_size(metadata)
    return None if found is None else of_sizes(*found)


def set_value(node: Node, value: ValueInfo) -> None:
    """Note what is known of ``node``."""
    node.meta[META] = value


def value_of(node: Any) -> ValueInfo | None:
    """What is known of ``node``; None also for what is no node."""
    found: ValueInfo | None = node.meta.get(META) if isinstance(node, Node) else None
    return found

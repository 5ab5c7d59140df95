"""One graph input or output: how a node's value becomes a ``GraphValue``.

See Note [How a category is decided] in ``profiler/model/category.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from memprof.profiler.model import Category, GraphValue, Role

from . import _torch_compat as compat
from .aot_metadata import Descriptor, DescriptorKind


class RoleInfo(NamedTuple):
    """Role of a value, the category of its memory, its qualified name, and which inner tensor of
    that it is."""

    role: Role
    category: Category
    fqn: str | None = None
    part: str | None = None


UNKNOWN = RoleInfo(Role.UNKNOWN, Category.UNKNOWN)
DETAIL = Category.AUTOGRAD_DETAIL


def is_rng(node: torch.fx.Node, desc: Descriptor) -> bool:
    """Tells whether a node is random-number state: a seed, an offset or a generator."""
    return desc.kind is DescriptorKind.RNG or isinstance(node.meta.get("val"), torch.Generator)


def has_memory(node: torch.fx.Node) -> bool:
    """Tells whether a node's value is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def without_memory(node: torch.fx.Node, desc: Descriptor, category: Category) -> RoleInfo | None:
    """Role of a number, generator, token or opaque object; None for a tensor or no value.

    Args:
        category: of numbers and opaque objects.
    """
    value = node.meta.get("val")
    if desc.whole.kind is DescriptorKind.RNG or isinstance(value, torch.Generator):
        return RoleInfo(Role.RNG_STATE, DETAIL)
    if desc.whole.kind is DescriptorKind.TOKEN:
        return RoleInfo(Role.TOKEN, DETAIL)
    if value is None or isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return RoleInfo(Role.SIZE, category)
    return RoleInfo(Role.OPAQUE, DETAIL if compat.is_backward_state(value) else category)


def absent_value(at: int) -> GraphValue:
    """Description of output ``at``, where the graph returns None."""
    return GraphValue(at, "", UNKNOWN.role, UNKNOWN.category)


def graph_value(at: int, node: torch.fx.Node, role: RoleInfo, **fields: Any) -> GraphValue:
    """The value of ``node`` at position ``at``, with further fields of ``GraphValue``."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        fields |= {
            "dtype": str(value.dtype),
            "shape": tuple(map(str, value.shape)),
            "device": str(value.device),
            "nbytes": extent_bytes(value),
        }
    return GraphValue(at, node.name, **role._asdict(), **fields)


def extent_bytes(tensor: torch.Tensor) -> int | None:
    """Bytes from a tensor's first element to its last; None if symbolic or not strided."""
    if tensor.layout is not torch.strided:
        return None
    numbers = (*tensor.shape, *tensor.stride())
    if not all(isinstance(n, int) for n in numbers):
        return None
    if 0 in tensor.shape:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()

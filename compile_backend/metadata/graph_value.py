"""One graph input or output: how a node's value and stack become a ``GraphValue``."""

from __future__ import annotations

from typing import Any

import torch

from memprof.compile_backend import _torch_compat as compat
from memprof.profiler.model import Category, GraphValue, Role

from .descriptor import Descriptor, DescriptorKind

Fact = tuple[Role, Category, str | None]
"""Role, category and qualified name of a value."""

UNKNOWN: Fact = (Role.UNKNOWN, Category.UNKNOWN, None)


def is_rng(node: torch.fx.Node, desc: Descriptor | None) -> bool:
    """Whether a node is random-number state: a seed, an offset or a generator."""
    described = desc is not None and desc.kind is DescriptorKind.RNG
    return described or isinstance(node.meta.get("val"), torch.Generator)


def has_memory(node: torch.fx.Node) -> bool:
    """Whether a node's value is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def fact_by_value(node: torch.fx.Node, category: Category) -> Fact | None:
    """Facts about what is no tensor: a number, generator or opaque object; None for a tensor.

    Args:
        category: of numbers and opaque objects.
    """
    value = node.meta.get("val")
    if value is None or isinstance(value, torch.Tensor):
        return None
    if isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return Role.SIZE, category, None
    if isinstance(value, torch.Generator):
        return Role.RNG_STATE, Category.AUTOGRAD_DETAIL, None
    if compat.is_backward_state(value):
        category = Category.AUTOGRAD_DETAIL
    return Role.OPAQUE, category, None


def absent_value(at: int) -> GraphValue:
    """What stands for an output where the graph returns None."""
    return GraphValue(at, "", Role.UNKNOWN, Category.UNKNOWN)


def graph_value(at: int, node: torch.fx.Node, fact: Fact, frame: str | None = None) -> GraphValue:
    """The value of ``node`` at position ``at``."""
    role, category, fqn = fact
    value = node.meta.get("val")
    known: dict[str, Any] = {}
    if isinstance(value, torch.Tensor):
        known = {
            "dtype": str(value.dtype),
            "shape": tuple(map(str, value.shape)),
            "device": str(value.device),
            "nbytes": extent_bytes(value),
        }
    return GraphValue(at, node.name, role, category, fqn, frame=frame, **known)


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


_TORCH_FOLDER = torch.__path__[0]


def user_frame(stack: str | None) -> str | None:
    """``file:line`` of the innermost frame outside torch, or of the innermost one at all.

    Args:
        stack: text as ``traceback`` prints it, innermost frame last.
    """
    found = None
    for text in (stack or "").splitlines():
        file, quote, rest = text.strip().removeprefix('File "').partition('", line ')
        if not quote or not text.lstrip().startswith('File "'):
            continue
        location = f"{file}:{rest.partition(',')[0]}"
        if found is None or not file.startswith(_TORCH_FOLDER) or found.startswith(_TORCH_FOLDER):
            found = location
    return found

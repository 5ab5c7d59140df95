"""One graph input or output: how a node's value becomes a ``GraphValue``; and from these the
category of each storage of a program.

See Note [How a category is decided] in ``profiler/model/category.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from memprof.profiler.model import Category, GraphValue, Origin, Role

from .. import _torch_compat as compat
from ..aot_metadata import Descriptor, DescriptorKind
from ..observation.program_builder import Categorize


class RoleInfo(NamedTuple):
    """Describes what a value is: its role, the category of its memory, its qualified name."""

    role: Role
    category: Category
    fqn: str | None = None


UNKNOWN = RoleInfo(Role.UNKNOWN, Category.UNKNOWN)
DETAIL = Category.AUTOGRAD_DETAIL


def is_rng(node: torch.fx.Node, desc: Descriptor) -> bool:
    """Tells whether a node is random-number state: a seed, an offset or a generator."""
    return desc.kind is DescriptorKind.RNG or isinstance(node.meta.get("val"), torch.Generator)


def has_memory(node: torch.fx.Node) -> bool:
    """Tells whether a node's value is a tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def without_memory(node: torch.fx.Node, desc: Descriptor, category: Category) -> RoleInfo | None:
    """Returns what a number, generator, token or opaque object is; None for a tensor.

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
    """Returns what stands for an output where the graph returns None."""
    return GraphValue(at, "", *UNKNOWN)


def graph_value(at: int, node: torch.fx.Node, info: RoleInfo, **known: Any) -> GraphValue:
    """The value of ``node`` at position ``at``, with further fields of ``GraphValue``."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        known |= {
            "dtype": str(value.dtype),
            "shape": tuple(map(str, value.shape)),
            "device": str(value.device),
            "nbytes": extent_bytes(value),
        }
    return GraphValue(at, node.name, *info, **known)


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


# Where several values share a storage, the one that decides how long it lives wins.
_PRECEDENCE = (
    Category.PARAMETER,
    Category.PERSISTENT_STATE,
    Category.OPTIMIZER_STATE,
    Category.CONSTANT,
    Category.GRADIENT,
    Category.CHECKPOINTED_INPUT,
    Category.ACTIVATION,
    Category.INPUT,
    Category.OUTPUT,
    Category.AUTOGRAD_DETAIL,
    Category.TEMPORARY,
    Category.UNKNOWN,
)


# Memory that no graph makes for itself.
_OF_OTHERS = (*_PRECEDENCE[:4], Category.INPUT)


def _made_for(value: GraphValue) -> Category:
    """Category of memory that the graph made for an output. Its value may be an input's where the
    memory is not: a convolution's backward gets the weight in another memory format, a copy."""
    if value.category not in _OF_OTHERS:
        return value.category
    return Category.ACTIVATION if value.role is Role.SAVED_FOR_BACKWARD else Category.OUTPUT


def categorizer(inputs: Sequence[GraphValue], outputs: Sequence[GraphValue]) -> Categorize:
    """The rule for one graph, in the form that ``build_program`` takes."""

    from_inputs = [v.category for v in inputs]
    from_outputs = [_made_for(v) for v in outputs]

    def strongest(categories: Sequence[Category], indices: tuple[int, ...]) -> Category:
        found = [categories[i] for i in indices if i < len(categories)]
        return min(found, key=_PRECEDENCE.index, default=Category.UNKNOWN)

    def categorize(
        origin: Origin, ins: tuple[int, ...], outs: tuple[int, ...], survives: bool
    ) -> Category:
        if origin is Origin.INPUT:
            return strongest(from_inputs, ins)
        if origin is Origin.EXTERNAL:
            return Category.CONSTANT
        if outs:
            return strongest(from_outputs, outs)
        # What outlives the call without being returned is held by a library, for a
        # purpose that nothing at hand can tell.
        return Category.UNKNOWN if survives else Category.TEMPORARY

    return categorize

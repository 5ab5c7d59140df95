"""Let a parameter take its first gradient instead of a copy of it.

Note [First gradients]
~~~~~~~~~~~~~~~~~~~~~~
Where a parameter has no gradient yet, the normal engine hands it the tensor that the backward
computed, if nobody else holds it. In a captured graph every tensor has a name and so a holder:
torch's accumulation copies each first gradient, which costs a kernel and, while both live, the
memory twice. That nobody else reads it can be seen in the graph: what computes it makes new memory,
and neither that nor a view on the way to the accumulation is used by anything else, such as a hook,
a second parameter that gets the same one, the outputs of ``grad()``. Of two layers of BERT and of
GPT-2, compiled by memprof on the CPU, it takes 82 and 28 copies out of the backward, which runs in
2.8 instead of 4.5 ms and in 5.4 instead of 6.4 ms of CPU time.

Of AOTAutograd's operators the schema says whether they make memory. Of plain autograd nodes (an
addition hands the same gradient to both sides) those that are known to are listed. Whether the
strides are as the parameter's is asked when the graph runs or is traced (``nodes.take_gradient``);
where not, the copy is made after all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from .. import _torch_compat, nodes
from ..nodes import HAS_GRADIENT, INPUT_GROUP, is_getitem

_MAKES_MEMORY: dict[str, frozenset[int]] = {
    # The first of an addmm is the gradient itself, which a bias of the same shape would get.
    "AddmmBackward0": frozenset((1, 2)),
    "BaddbmmBackward0": frozenset((1, 2)),
    "MmBackward0": frozenset((0, 1)),
    "BmmBackward0": frozenset((0, 1)),
    "ConvolutionBackward0": frozenset((0, 1, 2)),
    "EmbeddingBackward0": frozenset((0,)),
    "NativeLayerNormBackward0": frozenset((0, 1, 2)),
    "NativeGroupNormBackward0": frozenset((0, 1, 2)),
    "NativeBatchNormBackward0": frozenset((0, 1, 2)),
    "CudnnBatchNormBackward0": frozenset((0, 1, 2)),
}
"""Plain autograd nodes, and which of their results are memory of their own."""

_aten = torch.ops.aten
_VIEWS = frozenset(
    (
        _aten.t.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.detach.default,
        _aten.view.default,
        _aten.reshape.default,
        _aten._unsafe_view.default,
        _aten.squeeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.unsqueeze.default,
        _aten.alias.default,
    )
)
"""Operators whose result is a view of the whole argument, or a copy."""


def take_gradients(graph: Graph) -> None:
    """Replace accumulations of first gradients that nobody else holds."""
    for node in filter(nodes.is_accumulate_grad, graph.nodes):
        variable, current, new = nodes.accumulated(node)
        # Up to torch 2.12 the gradient until now is no argument. What has no storage of its
        # own (a subclass) keeps torch's way.
        first = current is None and HAS_GRADIENT not in variable.meta
        if first and INPUT_GROUP in variable.meta and new is not None and _own(new, node):
            node.target = nodes.take_gradient
            node.args = (variable, new, node.args[-1])


def _own(value: Node, user: Node) -> bool:
    """Tells whether only ``user`` reads the memory of ``value``, which the graph has made."""
    while True:
        if list(value.users) != [user] or nodes.is_item_of_argument(value):
            return False
        if is_getitem(value):
            source: Any = value.args[0]
            index = value.args[1]
            same = [u for u in source.users if not is_getitem(u) or u.args[1] == index]
            if same != [value] or not isinstance(index, int):
                return False
            name = getattr(source.target, "__name__", "")
            if isinstance(source.target, torch._ops.OpOverload):
                return _makes_memory(source.target)
            if name in _MAKES_MEMORY and _torch_compat.is_builtin_op(source.target):
                return index in _MAKES_MEMORY[name]
            # What validation hands on is what it is given, or a copy.
            if name != "validate_outputs" and name not in nodes.VIEW_NODES:
                return False
            part: Any = source.args[0][index]
            if not isinstance(part, Node):
                return False
            value, user = part, source
        elif value.target in _VIEWS:
            user = value
            value = value.args[0]  # type: ignore[assignment]
        else:
            return isinstance(value.target, torch._ops.OpOverload) and _makes_memory(value.target)


def _makes_memory(target: torch._ops.OpOverload) -> bool:
    return target.namespace in ("aten", "prims") and not any(
        a.alias_info is not None for a in (*target._schema.arguments, *target._schema.returns)
    )

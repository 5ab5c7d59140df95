"""What the lifted tensors of a captured backward are to the engine."""

from __future__ import annotations

from enum import Enum

from torch.fx import Graph, Node

from .nodes import accumulated, is_accumulate_grad, is_getitem, placeholders
from .origin import origin_of
from .value import value_of


class InputRole(Enum):
    """What one of ``inputs`` is; a parameter has none, Dynamo knows it by itself."""

    SAVED = "saved"
    """The forward saved it for the backward."""
    GRADIENT = "gradient"
    """A parameter's gradient until now, which is added to."""


def input_roles(graph: Graph) -> dict[int, InputRole]:
    """By index in ``inputs``; what a backward is started with has no role here."""
    gradients: set[Node] = set()
    for node in graph.nodes:
        if is_accumulate_grad(node) and (current := accumulated(node)[1]) is not None:
            gradients.add(current)
    found: dict[int, InputRole] = {}
    for node in placeholders(graph)["inputs"].users:
        if not is_getitem(node) or not isinstance(index := node.args[1], int):
            continue
        value = value_of(node)
        if node in gradients:
            found[index] = InputRole.GRADIENT
        elif value is not None and not value.persistent and not _starts_it(node):
            found[index] = InputRole.SAVED
    return found


def _starts_it(node: Node) -> bool:
    origins = [origin_of(user) for user in node.users]
    return any(o is not None and o.autograd_node.endswith("GraphRoot") for o in origins)

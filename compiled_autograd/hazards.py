"""Which nodes read memory that another node may write."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from .nodes import accumulated, aliased_inputs
from .value import GRADIENT_GROUP, INPUT_GROUP


def readers_of(node: Node, nodes: Mapping[Node, int]) -> set[Node]:
    """Nodes that read the memory of ``node``, directly, as a view, or as another input.

    Args:
        nodes: the graph's nodes (of which the inputs are taken).
    """
    group = node.meta.get(INPUT_GROUP)
    return _users([node] if group is None else _inputs_of(group, nodes))


def readers_of_gradient(accumulation: Node, nodes: Mapping[Node, int]) -> set[Node]:
    """Nodes other than ``accumulation`` that read the gradient which it adds to."""
    variable, current, _ = accumulated(accumulation)
    if current is not None:
        found = readers_of(current, nodes)
    else:  # up to torch 2.11 it is no argument, but may be a saved tensor of another node
        group = variable.meta.get(GRADIENT_GROUP)
        found = set() if group is None else _users(_inputs_of(group, nodes))
    return found - {accumulation}


def _inputs_of(group: int, nodes: Mapping[Node, int]) -> list[Node]:
    return [n for n in nodes if n.meta.get(INPUT_GROUP) == group]


def _users(pending: list[Node]) -> set[Node]:
    found: set[Node] = set()
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if aliased_inputs(user):
                    pending.append(user)
    return found

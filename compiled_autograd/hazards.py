"""Which nodes read memory that another node may write."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from .value import INPUT_GROUP
from .nodes import aliased_inputs


def readers_of(node: Node, nodes: Mapping[Node, int]) -> set[Node]:
    """Nodes that read the memory of ``node``, directly, as a view, or as another input.

    Args:
        nodes: the graph's nodes (of which the inputs are taken).
    """
    group = node.meta.get(INPUT_GROUP)
    pending = [node]
    if group is not None:
        pending = [n for n in nodes if n.meta.get(INPUT_GROUP) == group]
    found: set[Node] = set()
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if aliased_inputs(user):
                    pending.append(user)
    return found

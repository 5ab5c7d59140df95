"""Unpack what saved-tensor hooks packed when it is needed, not before."""

from __future__ import annotations

from torch.fx import Graph

from ..nodes import is_hook, runs_python


def unpack_hooks_late(graph: Graph) -> None:
    """Move each unpack hook to its first user.

    An unpack hook brings memory to life (it recomputes, decompresses, or copies back from
    the host), and the engine asks for all of a node's saved tensors before the node runs.
    It is not moved past other Python code, which could have changed what it unpacks.
    """
    # Last first, so that several in a row make room for each other and keep their order.
    for node in reversed(list(graph.nodes)):
        if not is_hook(node, "unpack_hook") or not node.users:
            continue
        first = min(node.users)
        at = node
        while at.next is not first and not runs_python(at.next):
            at = at.next
        if at is not node:
            at.append(node)

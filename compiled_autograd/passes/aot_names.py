"""Name inlined nodes after the nodes of AOTAutograd's backward graph."""

from __future__ import annotations

from torch.fx import Graph

from .. import _torch_compat
from ..aot_backward import AOT_NAME


def aot_names(graph: Graph) -> None:
    """``mm_3`` from graph 1 becomes ``aot1_mm_3``, so that both graphs can be read side by side.

    A second use of the same graph in one backward says so: ``aot1_1_mm_3``.
    """
    for node in graph.nodes:
        if (name := node.meta.get(AOT_NAME)) is not None and node.name != name:
            _torch_compat.rename_node(node, name)

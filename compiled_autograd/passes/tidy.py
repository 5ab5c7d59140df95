"""What nobody needs goes, before Dynamo has to trace it; what is left gets names to read."""

from __future__ import annotations

from torch.fx import Graph

from .. import _torch_compat
from ..aot_backward import AOT_NAME
from ..nodes import has_side_effects, is_item_of_argument, placeholders


def remove_dead_code(graph: Graph) -> None:
    """Keeps hooks, functions of the user, accumulations and every item of the arguments.

    Items stay although unused, because Dynamo must see each list taken apart: it refuses
    aliasing guards between inputs that it finds only through the list. Unused sizes go,
    in a pass of their own.
    """
    graph.eliminate_dead_code(lambda node: has_side_effects(node) or is_item_of_argument(node))


def remove_unused_sizes(graph: Graph) -> tuple[int, ...]:
    """Renumber what is left of ``sizes``; the indices that it had, in the new order.

    Each size costs a tensor a run (``mark_dynamic_size``) and a guard.
    """
    used: list[int] = []
    for item in list(placeholders(graph)["sizes"].users):
        source, index = item.args
        if item.users:
            item.args = (source, len(used))
            assert isinstance(index, int)
            used.append(index)
        else:
            graph.erase_node(item)
    return tuple(used)


def aot_names(graph: Graph) -> None:
    """``mm_3`` from graph 1 becomes ``aot1_mm_3``, so that both graphs can be read side by side.

    A second use of the same graph in one backward says so: ``aot1_1_mm_3``.
    """
    for node in graph.nodes:
        if (name := node.meta.get(AOT_NAME)) is not None and node.name != name:
            _torch_compat.rename_node(node, name)

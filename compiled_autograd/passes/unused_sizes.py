"""Leave out the lifted sizes that the graph does not read."""

from __future__ import annotations

from torch.fx import Graph

from ..nodes import placeholders


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

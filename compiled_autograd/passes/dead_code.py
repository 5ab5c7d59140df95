"""Remove nodes that nobody needs, before Dynamo has to trace them."""

from __future__ import annotations

from torch.fx import Graph

from ..nodes import has_side_effects, is_item_of_argument


def remove_dead_code(graph: Graph) -> None:
    """Keeps hooks, functions of the user, accumulations and every item of the arguments.

    Items stay although unused, because Dynamo must see each list taken apart: it refuses
    aliasing guards between inputs that it finds only through the list. Unused sizes go,
    in a pass of their own.
    """
    graph.eliminate_dead_code(lambda node: has_side_effects(node) or is_item_of_argument(node))

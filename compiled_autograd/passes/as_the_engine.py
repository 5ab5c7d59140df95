"""Run Python code where the normal engine would."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from torch.fx import Graph, Node

from ..node_meta import SUM_OF_GRADIENTS
from ..nodes import is_final, is_item_of_argument, runs_python
from ..origin import origin_of


def as_the_engine(graph: Graph, places: Sequence[int]) -> None:
    """Reorder a graph that calls Python code as the normal engine would run it (Note [Two orders]).

    Nodes of one call of the engine stay together and in order. A sum of gradients that arrive
    at one place, which has no call of its own, follows the last of them.

    Args:
        places: of each call of the engine, its place in the normal engine's order.
    """
    if not any(map(runs_python, graph.nodes)):
        return
    order = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    place: dict[Node, int] = {}
    for node in order:
        origin = origin_of(node)
        if is_item_of_argument(node) or node.op == "get_attr" or origin is None:
            place[node] = -1
        elif is_final(node):
            place[node] = len(places)
        elif SUM_OF_GRADIENTS in node.meta:
            place[node] = max((place.get(a, -1) for a in node.all_input_nodes), default=-1)
        else:
            place[node] = places[origin.call_index]
    # Arithmetic on sizes is made for the first call that wants it, and there for all.
    for node in reversed(order):
        place[node] = min((place[node], *(place[u] for u in node.users if u in place)))
    position = {node: i for i, node in enumerate(order)}
    waiting = {n: sum(a in position for a in n.all_input_nodes) for n in order}
    ready = [(place[n], position[n]) for n in order if not waiting[n]]
    heapq.heapify(ready)
    end = graph.output_node()
    while ready:
        node = order[heapq.heappop(ready)[1]]
        end.prepend(node)
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (place[user], position[user]))

"""In which order the normal engine would run the autograd nodes of a captured backward.

Note [Two orders]
~~~~~~~~~~~~~~~~~
The normal engine runs, of the nodes that are ready, the one that the forward made last, and
accumulates gradients first of all. For a capture C++ walks the same graph depth first. What a node
computes does not depend on that. What Python code does may: FSDP2 gives a block's parameters back
in an autograd.Function that the normal engine runs when all else of that block is over, and a
depth-first walk before others that read them.

C++ hands out names and no sequence numbers. So where a captured graph calls Python code, the
autograd graph is walked again, from the tensors that ``backward()`` was called with: depth first,
to know which node is which call, and in the engine's order. Should the names not agree, the graph
stays as it was captured.

C++'s cache compares autograd graphs without sequence numbers, so a forward that makes the same
graph in another order hits, and its Python code runs in the first one's. To notice that, every run
would have to walk its graph in Python.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from . import _torch_compat
from .nodes import add_gradients, is_final, is_item_of_argument, origin_of, runs_python

Edges = dict[Any, list[Any]]
"""Nodes to which each running node's value goes; for None, the engine's root, the first nodes."""


def _edges(roots: Iterable[Any], targets: Sequence[Any]) -> Edges:
    pending = list(map(_torch_compat.autograd_node, roots))
    edges: Edges = {None: list(pending)}
    for node in pending:  # which grows meanwhile
        if node not in edges:
            edges[node] = [n for n, _ in node.next_functions if n is not None]
            pending += edges[node]
    if not targets:
        return edges
    before: dict[Any, list[Any]] = defaultdict(list)
    for node, following in edges.items():
        for other in following:
            before[other].append(node)
    needed = dict.fromkeys(map(_torch_compat.autograd_node, targets))
    pending = list(needed)
    for node in pending:
        pending += [n for n in before[node] if n not in needed]
        needed |= dict.fromkeys(before[node])
    return {node: [n for n in following if n in needed] for node, following in edges.items()}


def scheduled(edges: Edges, key: Callable[[Any], Any]) -> list[Any]:
    """All nodes, each behind those with an edge to it: of those that are ready the one with the
    least ``key``, which is another one for each and asked when it becomes ready."""
    waiting = Counter(itertools.chain.from_iterable(edges.values()))
    order = []
    ready: list[tuple[Any, Any]] = [((), None)]
    while ready:
        node = heapq.heappop(ready)[1]
        order.append(node)
        for other in edges[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (key(other), other))
    return order


def engine_order(
    roots: Iterable[Any], targets: Sequence[Any], calls: Mapping[int, str]
) -> Sequence[int] | None:
    """Places of a capture's calls in the normal engine's order.

    Args:
        roots: tensors and gradient edges that the captured backward was begun with.
        targets: those whose gradients are asked for; none: of all leaves.
        calls: number of a call -> name of its autograd node; if these are not of that graph the
            answer is None.
    """
    edges = _edges(roots, targets)
    newest = itertools.count(0, -1)
    walked = scheduled(edges, lambda node: next(newest))  # depth first
    for call, name in calls.items():
        if call >= len(walked) or (walked[call] is not None and walked[call].name() != name):
            return None
    found = {node: i for i, node in enumerate(edges)}
    in_order = scheduled(edges, lambda node: (-_torch_compat.sequence_number(node), found[node]))
    place = {node: i for i, node in enumerate(in_order)}
    return [place[node] for node in walked]


def as_the_engine(graph: Graph, places: Sequence[int]) -> None:
    """Reorder a graph that calls Python code as the normal engine would run it (Note [Two orders]).

    Nodes of one call of the engine stay together and in order. A sum of gradients that arrive
    at one place, which has no call of its own, follows the last of them. ``places`` are those of
    the engine's calls in the normal engine's order.
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
        elif node.target in (torch.add, add_gradients):
            place[node] = max((place.get(a, -1) for a in node.all_input_nodes), default=-1)
        else:
            place[node] = places[origin.call_index]
    # Arithmetic on sizes is made for the first call that wants it, and there for all.
    for node in reversed(order):
        place[node] = min((place[node], *(place[u] for u in node.users if u in place)))
    edges: Edges = {n: [u for u in n.users if u in place] for n in order}
    edges[None] = [n for n in order if not any(a in place for a in n.all_input_nodes)]
    position = {node: i for i, node in enumerate(order)}
    for node in scheduled(edges, lambda n: (place[n], position[n]))[1:]:
        graph.output_node().prepend(node)

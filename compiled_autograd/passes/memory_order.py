"""Reorder independent nodes so that less memory is live at the worst moment.

Note [Reordering for memory]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
List scheduling: of the nodes whose arguments exist, run one that makes live memory shrink, or grow
the least. Two rules are tried: always the node with the smallest growth, and nodes that do not grow
memory first, all others in their order. Greedy choices can be wrong further on, so the better
schedule is taken only if its estimated peak is lower than that of the order it started from.

Results do not change, bit by bit, because only nodes move that are functions of their
arguments, and accumulations. Python code (hooks, autograd.Functions) and everything not
known to be a function stays where it is, and nothing moves past it. An accumulation
writes the existing gradient, so it stays on its side of every reader of that.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence

from torch.fx import Graph, Node

from ..memory import Block, Blocks, peak
from ..nodes import is_accumulate_grad, is_functional, is_item_of_argument
from .accumulations import readers_of_gradient

Rule = Callable[[int, int], tuple[int, ...]]
"""``(growth in bytes, place in the old order) -> priority``, smallest first."""

Uses = dict[Block, set[Node]]
"""The nodes that have not run yet and use a block."""

RULES: tuple[Rule, ...] = (
    lambda growth, place: (growth, place),
    lambda growth, place: (0 if growth <= 0 else 1, place),
)


def memory_order(graph: Graph) -> tuple[int, int]:
    """Reorder ``graph`` if that lowers its estimated peak; that peak before and after, bytes."""
    blocks = Blocks(graph)
    order = [n for n in graph.nodes if n.op != "placeholder"]
    before = best = peak(order, blocks)
    chosen = None
    if before:
        edges = _hazards(order)
        for rule in RULES:
            candidate = _schedule(order, blocks, edges, rule)
            if (estimate := peak(candidate, blocks)) < best:
                best, chosen = estimate, candidate
    for node in chosen or ():
        if node.op != "output":
            graph.output_node().prepend(node)
    return before, best


def _hazards(order: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Pairs ``(first, then)`` that are not in the data flow."""
    return [
        (reader, node) if reader < node else (node, reader)
        for node in filter(is_accumulate_grad, order)
        for reader in readers_of_gradient(node)
    ]


def _moves(node: Node) -> bool:
    return not is_item_of_argument(node) and (is_functional(node) or is_accumulate_grad(node))


def _schedule(
    order: Sequence[Node], blocks: Blocks, hazards: Sequence[tuple[Node, Node]], rule: Rule
) -> list[Node]:
    """The nodes in the order that ``rule`` gives them, segment by segment."""
    users_left: Uses = defaultdict(set)
    for node in order:
        for block in blocks.live_at(node):
            users_left[block].add(node)
    result: list[Node] = []
    segment: list[Node] = []
    for node in order:
        if _moves(node):
            segment.append(node)
            continue
        result += _segment(segment, blocks, hazards, users_left, rule)
        segment = []
        result.append(node)
        _run(node, blocks, users_left)
    return result + _segment(segment, blocks, hazards, users_left, rule)


def _run(node: Node, blocks: Blocks, left: Uses) -> None:
    for block in blocks.live_at(node):
        left[block].discard(node)


def _growth(node: Node, blocks: Blocks, left: Uses) -> int:
    dies = [b for b in blocks.live_at(node) if len(left[b]) == 1 and not b.stays and not b.outside]
    return sum(b.nbytes for b in blocks.made.get(node, ())) - sum(b.nbytes for b in dies)


def _segment(
    nodes: Sequence[Node],
    blocks: Blocks,
    hazards: Sequence[tuple[Node, Node]],
    left: Uses,
    rule: Rule,
) -> list[Node]:
    place = {node: i for i, node in enumerate(nodes)}
    followers: dict[Node, list[Node]] = {node: [] for node in nodes}
    waiting = dict.fromkeys(nodes, 0)
    edges = [(a, n) for n in nodes for a in n.all_input_nodes if a in place]
    for first, then in (*edges, *(h for h in hazards if h[0] in place and h[1] in place)):
        followers[first].append(then)
        waiting[then] += 1
    heap: list[tuple[tuple[int, ...], int]] = []

    def offer(node: Node) -> None:
        at = place[node]
        heapq.heappush(heap, (rule(_growth(node, blocks, left), at), at))

    for node in nodes:
        if waiting[node] == 0:
            offer(node)
    result: list[Node] = []
    done: set[Node] = set()
    while heap:
        node = nodes[heapq.heappop(heap)[1]]
        if node in done:  # offered again when it became cheaper
            continue
        done.add(node)
        result.append(node)
        _run(node, blocks, left)
        for block in blocks.used[node]:
            if len(left[block]) == 1:
                (last,) = left[block]
                if last in place and last not in done and waiting[last] == 0:
                    offer(last)
        for follower in followers[node]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                offer(follower)
    return result

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
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from torch.fx import Graph, Node

from ..memory import Block, Blocks, peak
from ..nodes import is_accumulate_grad, is_functional, is_item_of_argument
from .accumulations import readers_of_gradient

Rule = Callable[[int, int], tuple[int, ...]]
"""``(growth in bytes, place in the old order) -> priority``, smallest first."""

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
        followers = _followers(order)
        for rule in RULES:
            candidate = _schedule(order, blocks, followers, rule)
            if (estimate := peak(candidate, blocks)) < best:
                best, chosen = estimate, candidate
    for node in chosen or ():
        if node.op != "output":
            graph.output_node().prepend(node)
    return before, best


def _followers(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """Returns what must come behind each node: its users, and where one of the two accumulates into
    what the other reads."""
    followers = {node: list(node.users) for node in order}
    for node in filter(is_accumulate_grad, order):
        for reader in readers_of_gradient(node):
            first, then = (reader, node) if reader < node else (node, reader)
            followers[first].append(then)
    return followers


def _moves(node: Node) -> bool:
    return not is_item_of_argument(node) and (is_functional(node) or is_accumulate_grad(node))


def _schedule(
    order: Sequence[Node], blocks: Blocks, followers: Mapping[Node, list[Node]], rule: Rule
) -> list[Node]:
    """The nodes in the order that ``rule`` gives them, between two that do not move."""
    left: dict[Block, set[Node]] = defaultdict(set)
    """The nodes that have not run yet and use a block."""
    for node in order:
        for block in blocks.live_at(node):
            left[block].add(node)
    place = {node: i for i, node in enumerate(order)}
    result: list[Node] = []

    heap: list[tuple[tuple[int, ...], int]] = []

    def run(node: Node) -> None:
        result.append(node)
        for block in blocks.live_at(node):
            left[block].discard(node)

    def offer(node: Node) -> None:
        growth = sum(b.nbytes for b in blocks.made.get(node, ()))
        for block in blocks.live_at(node):
            if len(left[block]) == 1 and not block.stays and not block.outside:
                growth -= block.nbytes
        heapq.heappush(heap, (rule(growth, place[node]), place[node]))

    for moves, nodes in itertools.groupby(order, _moves):
        if not moves:
            for node in nodes:
                run(node)
            continue
        segment = set(nodes)
        waiting = Counter(f for node in segment for f in followers[node])
        for node in segment:
            if not waiting[node]:
                offer(node)
        while heap:
            node = order[heapq.heappop(heap)[1]]
            if node not in segment:  # offered again when it became cheaper
                continue
            segment.remove(node)
            run(node)
            for block in blocks.used[node]:
                for last in left[block] if len(left[block]) == 1 else ():
                    if last in segment and not waiting[last]:
                        offer(last)
            for follower in followers[node]:
                waiting[follower] -= 1
                if follower in segment and not waiting[follower]:
                    offer(follower)
    return result

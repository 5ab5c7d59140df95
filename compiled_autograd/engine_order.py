"""In which order the normal engine would run the autograd nodes of a captured backward.

Note [Two orders]
~~~~~~~~~~~~~~~~~
The normal engine runs, of the nodes that are ready, the one that the forward made last, and
accumulates gradients first of all. For a capture C++ walks the same graph depth first. What a
node computes does not depend on that. What Python code does may: FSDP2 gives the memory of a
block's parameters back in an autograd.Function that the normal engine runs when everything
else of that block is over, and in a depth-first walk others come later that read them.

C++ hands out names and no sequence numbers. So where a captured graph calls Python code, the
autograd graph is walked once more, from the tensors that ``backward()`` was called with: depth
first, as C++ does, to know which node is which call, and in the engine's order. Should the names
not agree, there is no order to give and the graph stays as it was captured.

The order is that of the forward that was captured. C++'s cache compares autograd graphs without
sequence numbers, so a forward that makes the same graph in another order hits, and its Python code
runs in the first one's order. To notice that, every run would have to walk its graph in Python;
where nodes do not depend on each other, gradients are the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _torch_compat


@dataclass(frozen=True, slots=True)
class Entered:
    """How the engine was entered: where it starts, and which gradients are wanted.

    Attributes:
        roots: autograd nodes to start from, one a tensor.
        targets: nodes of the tensors whose gradients are asked for; none: all leaves.
    """

    roots: tuple[Any, ...]
    targets: tuple[Any, ...]

    @classmethod
    def of(cls, outputs: Iterable[Any], inputs: Iterable[Any]) -> Entered:
        """From the arguments of ``backward()``: tensors and gradient edges."""
        return cls(
            tuple(map(_torch_compat.autograd_node, outputs)),
            tuple(map(_torch_compat.autograd_node, inputs)),
        )


@dataclass(slots=True)
class _Graph:
    """The autograd graph, its nodes numbered; 0 is the engine's own root.

    Attributes:
        nodes: the root's is None.
        next: of each node, where its gradients go.
    """

    nodes: list[Any]
    next: list[list[int]]
    _numbers: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, entered: Entered) -> _Graph:
        graph = cls([None], [[]])
        graph.next[0] = [graph._number(root) for root in entered.roots]
        at = 1
        while at < len(graph.nodes):
            graph.next[at] = [
                graph._number(node)
                for node, _ in graph.nodes[at].next_functions
                if node is not None
            ]
            at += 1
        if entered.targets:
            graph._keep({graph._number(target) for target in entered.targets})
        return graph

    def _number(self, node: Any) -> int:
        number = self._numbers.get(id(node))
        if number is None:
            number = self._numbers[id(node)] = len(self.nodes)
            self.nodes.append(node)
            self.next.append([])
        return number

    def _keep(self, needed: set[int]) -> None:
        """Only edges that lead to one of ``needed``."""
        before: list[list[int]] = [[] for _ in self.nodes]
        for node, following in enumerate(self.next):
            for other in following:
                before[other].append(node)
        pending = list(needed)
        while pending:
            for node in before[pending.pop()]:
                if node not in needed:
                    needed.add(node)
                    pending.append(node)
        self.next = [[n for n in following if n in needed] for following in self.next]

    def dependencies(self) -> list[int]:
        """How many gradients each node waits for."""
        found = [0] * len(self.nodes)
        for following in self.next:
            for node in following:
                found[node] += 1
        return found

    def depth_first(self) -> list[int]:
        """The nodes in the order in which C++ walks them for a capture."""
        waiting, pending, order = self.dependencies(), [0], []
        while pending:
            node = pending.pop()
            order.append(node)
            for other in self.next[node]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    pending.append(other)
        return order

    def as_the_engine(self) -> list[int]:
        """The nodes in the order in which the normal engine runs them."""
        waiting, order = self.dependencies(), []
        ready: list[tuple[int, int]] = [(0, 0)]
        while ready:
            node = heapq.heappop(ready)[1]
            order.append(node)
            for other in self.next[node]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    newest = -_torch_compat.sequence_number(self.nodes[other])
                    heapq.heappush(ready, (newest, other))
        return order


def engine_order(entered: Entered, calls: Mapping[int, str]) -> Sequence[int] | None:
    """For each call of a capture, its place in the normal engine's order.

    Args:
        entered: how the captured backward was begun.
        calls: number of a call -> name of its autograd node, as C++ told them.

    Returns:
        By number of the call; None if ``calls`` are not those of that graph.
    """
    graph = _Graph.of(entered)
    walked = graph.depth_first()
    for call, name in calls.items():
        if call >= len(walked):
            return None
        node = graph.nodes[walked[call]]
        if node is not None and _torch_compat.node_name(node) != name:
            return None
    place = {node: i for i, node in enumerate(graph.as_the_engine())}
    return [place[node] for node in walked]

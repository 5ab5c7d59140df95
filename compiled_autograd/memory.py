"""Live bytes of a captured graph, node by node, estimated from what capture knows.

Note [The estimate]
~~~~~~~~~~~~~~~~~~~
A *block* is memory that one or more nodes share: a view, a validated gradient and an item
of a list belong to the block of what they come from. A block is born with its first node
and dies after the last node that uses any of its nodes; blocks of parameters and of
gradients that are there already are not counted; a parameter's first ``.grad`` is a copy
of the gradient unless that is taken (Note [First gradients]), and never dies; what the forward
saved is live from the start and dies after its last use, since Dynamo takes the list of inputs
apart. A node's peak is taken with its inputs and outputs both live.

Not in it: scratch memory inside operators, rounding of an allocator, what hooks allocate,
and values whose size is unknown (``unknown``), such as what an unpack hook returns.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from .node_meta import INPUT_GROUP, value_of
from .nodes import (
    accumulated,
    aliased_inputs,
    is_accumulate_grad,
    is_hook,
    is_item_of_argument,
    takes_gradient,
)


@dataclass(slots=True, eq=False)
class Block:
    """Memory shared by some nodes.

    Attributes:
        nbytes: bytes, 0 if unknown.
        at_entry: live when the graph begins.
        stays: live when it ends.
        outside: a parameter's or existing gradient's, not counted.
    """

    nbytes: int = 0
    at_entry: bool = False
    stays: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Estimate for one node.

    Attributes:
        node: its name.
        allocated: bytes that come to life at it.
        freed: bytes that die after it.
        live: bytes live while it runs, inputs and outputs included.
        known: False if it makes a value of unknown size.
    """

    node: str
    allocated: int
    freed: int
    live: int
    known: bool


class Blocks:
    """Which block each node of a graph reads and makes.

    Attributes:
        blocks: all.
        made: for each node, the blocks that come to life at it.
        used: for each node, the blocks that must be live while it runs.
        unknown: nodes that make a value of unknown size.
    """

    def __init__(self, graph: Graph) -> None:
        self.blocks: list[Block] = []
        self.made: dict[Node, list[Block]] = {}
        self.used: dict[Node, list[Block]] = {}
        self.unknown: set[Node] = set()
        self._of: dict[Node, Block] = {}
        groups: dict[Any, Block] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            if is_item_of_argument(node):
                self._input(node, groups)
            else:
                self._inner(node)
            self.used[node] = list(
                dict.fromkeys(self._of[a] for a in node.all_input_nodes if a in self._of)
            )
            if node.op == "output":
                for block in self.used[node]:
                    block.stays = True
            elif is_accumulate_grad(node):
                self._accumulation(node)

    def live_at(self, node: Node) -> tuple[Block, ...]:
        """The blocks that are live while ``node`` runs because of it."""
        return (*self.used[node], *self.made.get(node, ()))

    def _input(self, node: Node, groups: dict[Any, Block]) -> None:
        value = value_of(node)
        if value is None:
            return
        # What shares no memory has no group.
        group = node.meta.get(INPUT_GROUP, node)
        if (block := groups.get(group)) is None:
            block = groups[group] = Block(at_entry=True)
            self.blocks.append(block)
        block.nbytes = max(block.nbytes, value.nbytes or 0)
        block.outside |= value.persistent
        self._of[node] = block

    def _inner(self, node: Node) -> None:
        source = _source(node)
        shared = self._of.get(source) if source is not None else None
        if source is not None and shared is None and node.target is operator.getitem:
            # One result of several: born with the others, at the node that computes them.
            self._new(node, source)
        elif shared is not None:
            self._of[node] = shared
        elif value_of(node) is not None:
            self._new(node, node)
        elif is_hook(node):
            self.unknown.add(node)

    def _new(self, node: Node, born_at: Node) -> None:
        value = value_of(node)
        if value is None or value.nbytes is None:
            self.unknown.add(node)
        block = self._of[node] = Block((value.nbytes or 0) if value is not None else 0)
        self.made.setdefault(born_at, []).append(block)
        self.blocks.append(block)

    def _accumulation(self, node: Node) -> None:
        variable, current, new = accumulated(node)
        self.made.pop(node, None)
        self._of.pop(node, None)
        if current is not None:
            if current in self._of:
                self._of[node] = self._of[current]
                self._of[node].outside = True
            return
        taken = self._of.get(new) if new is not None and takes_gradient(node) else None
        if taken is None:
            value = value_of(variable)
            taken = Block((value.nbytes or 0) if value is not None else 0)
            self.made[node] = [taken]
            self.blocks.append(taken)
        taken.stays = True
        self._of[node] = taken


def _source(node: Node) -> Node | None:
    """The node whose memory the value of ``node`` is, or is one part of."""
    if node.target is not operator.getitem:
        shared = aliased_inputs(node)
        return shared[0] if len(shared) == 1 else None
    whole, index = node.args
    if not isinstance(whole, Node) or not isinstance(index, int):
        return None
    name = getattr(whole.target, "__name__", "")
    parts: Any = None
    if name == "validate_outputs":
        parts = whole.args[0]
    elif is_hook(whole):
        parts = whole.args[1]
    elif name == "aot_backward_prologue":
        saved, symints, opaque, grads = whole.args
        parts = [*symints, *saved, *opaque, *grads]  # type: ignore[misc]
    known = isinstance(parts, (list, tuple)) and index < len(parts)
    return parts[index] if known and isinstance(parts[index], Node) else whole


def node_memory(graph: Graph) -> list[NodeMemory]:
    """The estimate for each node, in graph order."""
    return profile([n for n in graph.nodes if n.op != "placeholder"], Blocks(graph))


def profile(order: Sequence[Node], blocks: Blocks) -> list[NodeMemory]:
    """The estimate for each node, run in that order."""
    left = Counter(b for n in order for b in blocks.live_at(n))
    live = sum(b.nbytes for b in blocks.blocks if b.at_entry and not b.outside)
    found = []
    for node in order:
        allocated = sum(b.nbytes for b in blocks.made.get(node, ()))
        live += allocated
        freed = 0
        for block in blocks.live_at(node):
            left[block] -= 1
            if left[block] == 0 and not block.stays and not block.outside:
                freed += block.nbytes
        found.append(NodeMemory(node.name, allocated, freed, live, node not in blocks.unknown))
        live -= freed
    return found


def peak(order: Sequence[Node], blocks: Blocks) -> int:
    """Most live bytes at any node of that order."""
    return max((m.live for m in profile(order, blocks)), default=0)

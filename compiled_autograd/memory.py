"""Live bytes of a captured graph, node by node, estimated from what capture knows.

Note [The estimate]
~~~~~~~~~~~~~~~~~~~
A *block* is memory that one or more nodes share: a view, a validated gradient and an item of a list
belong to the block of what they come from. It is born with its first node and dies after the last
that uses any of its nodes. Blocks of parameters and of gradients that are there already are not
counted; a parameter's first ``.grad`` is a copy of the gradient unless that is taken (Note [First
gradients]), and never dies; what the forward saved is live from the start and dies after its last
use. A node's peak is taken with its inputs and outputs both live.

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

from . import nodes
from .node_meta import INPUT_GROUP, ValueInfo, value_of


@dataclass(slots=True, eq=False)
class Block:
    """Memory shared by some nodes."""

    nbytes: int = 0  # 0 if unknown
    at_entry: bool = False  # live when the graph begins
    stays: bool = False  # live when it ends
    outside: bool = False  # a parameter's or existing gradient's, not counted


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Estimate for one node."""

    node: str  # its name
    allocated: int  # bytes that come to life at it
    freed: int  # bytes that die after it
    live: int  # bytes live while it runs, inputs and outputs included
    known: bool  # not so if it makes a value of unknown size


class Blocks:
    """Which block each node of a graph reads and makes."""

    def __init__(self, graph: Graph) -> None:
        self.blocks: list[Block] = []
        self.made: dict[Node, list[Block]] = {}
        """The blocks that come to life at a node."""
        self.used: dict[Node, list[Block]] = {}
        """The blocks that must be live while a node runs."""
        self.unknown: set[Node] = set()
        """Nodes that make a value of unknown size."""
        self._of: dict[Node, Block] = {}
        self._groups: dict[Any, Block] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            used = dict.fromkeys(self._of[a] for a in node.all_input_nodes if a in self._of)
            self.used[node] = list(used)
            if node.op == "output":
                for block in used:
                    block.stays = True
            elif nodes.is_accumulate_grad(node):
                self._accumulation(node)
            elif nodes.is_item_of_argument(node):
                self._input(node)
            else:
                self._inner(node)

    def live_at(self, node: Node) -> tuple[Block, ...]:
        """The blocks that are live while ``node`` runs because of it."""
        return (*self.used[node], *self.made.get(node, ()))

    def _input(self, node: Node) -> None:
        if (value := value_of(node)) is not None:
            # What shares no memory has no group.
            group = node.meta.get(INPUT_GROUP, node)
            if (block := self._groups.get(group)) is None:
                block = self._groups[group] = Block(at_entry=True)
                self.blocks.append(block)
            block.nbytes = max(block.nbytes, value.nbytes or 0)
            block.outside |= value.persistent
            self._of[node] = block

    def _inner(self, node: Node) -> None:
        source = _source(node)
        if source is not None and source in self._of:
            self._of[node] = self._of[source]
        elif source is not None and node.target is operator.getitem:
            # One result of several: born with the others, at the node that computes them.
            self._of[node] = self._new(node, source, value_of(node))
        elif value_of(node) is not None:
            self._of[node] = self._new(node, node, value_of(node))
        elif nodes.is_hook(node):
            self.unknown.add(node)

    def _new(self, node: Node, born_at: Node, value: ValueInfo | None) -> Block:
        nbytes = None if value is None else value.nbytes
        if nbytes is None:
            self.unknown.add(node)
        block = Block(nbytes or 0)
        self.made.setdefault(born_at, []).append(block)
        self.blocks.append(block)
        return block

    def _accumulation(self, node: Node) -> None:
        variable, current, new = nodes.accumulated(node)
        if current is not None:
            if current in self._of:
                self._of[node] = self._of[current]
                self._of[node].outside = True
            return
        taken = self._of.get(new) if new is not None and nodes.takes_gradient(node) else None
        self._of[node] = taken or self._new(node, node, value_of(variable))
        self._of[node].stays = True


def _source(node: Node) -> Node | None:
    """The node whose memory the value of ``node`` is, or is one part of."""
    if node.target is not operator.getitem:
        shared = nodes.aliased_inputs(node)
        return shared[0] if len(shared) == 1 else None
    whole, index = node.args
    if not isinstance(whole, Node) or not isinstance(index, int):
        return None
    name = getattr(whole.target, "__name__", "")
    parts: Any = None
    if name == "validate_outputs":
        parts = whole.args[0]
    elif nodes.is_hook(whole):
        parts = whole.args[1]
    elif nodes.is_aot_prologue(whole):
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

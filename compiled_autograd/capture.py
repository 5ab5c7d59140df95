"""Captured backwards: their graphs, estimated memory, and why no earlier graph could be used.

Note [The estimate]
~~~~~~~~~~~~~~~~~~~
What is counted is memory that one or more nodes share: a view, a validated gradient and an item of
a list belong to the memory of what they come from. It is born with its first node and dies after
the last that uses any of its nodes. Parameters and gradients that are there already are not
counted; a parameter's first ``.grad`` is a copy of the gradient unless that is taken (Note [First
gradients]), and never dies; what the forward saved is live from the start and dies after its last
use. A node's peak is taken with its inputs and outputs both live.

Not in it: scratch memory inside operators, rounding of an allocator, what hooks allocate,
and values whose size is unknown (``unknown``), such as what an unpack hook returns.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import nodes
from .nodes import (
    GRADIENT_OF,
    INPUT_GROUP,
    LIFTED_FROM,
    NodeOrigin,
    ValueInfo,
    forward_frames,
    forward_module,
    origin_of,
    value_of,
)

KEPT = 64
"""Signatures of captures that are kept to explain later ones."""


@dataclass(slots=True)
class Signature:
    """Enough of a capture to say how another one differs.

    Attributes:
        id: number of the capture; Dynamo's compile ids of it begin with ``!<id>/``.
        calls: names of the autograd nodes, in the engine's order; of AOTAutograd's with the
            number of the graph, since a forward that is compiled anew has a node of its own.
        shapes, sizes: of the lifted tensors; lifted sizes.
    """

    id: int
    calls: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@dataclass(slots=True)
class CapturedBackward(Signature):
    """One captured backward.

    Attributes:
        graph: the captured graph after the passes; it takes the five lists of
            ``nodes.PLACEHOLDERS``.
        capture_ns: time from the engine's first call to the finished graph, compiler excluded,
            nanoseconds.
        used_sizes: indices of the lifted sizes that the graph reads.
        inputs_to_cuda: indices of inputs that the graph expects on a GPU, and which.
        reason: why no earlier graph could be used.
        disagreements: sentences about backwards of compiled functions that are not as their
            forward's description says, or whose description could not be read: torch's own word
            is taken for them.
    """

    graph: GraphModule
    capture_ns: int
    used_sizes: tuple[int, ...]
    inputs_to_cuda: dict[int, torch.device]
    reason: str = ""
    disagreements: Sequence[str] = ()
    runs: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def memory(self) -> tuple[NodeMemory, ...]:
        """Estimated bytes, node by node in graph order (Note [The estimate])."""
        return tuple(node_memory(self.graph.graph))

    @property
    def origins(self) -> dict[str, NodeOrigin]:
        """Node name -> the autograd node that it belongs to; of what was lifted out of the
        autograd graph only with ``TORCH_LOGS=compiled_autograd_verbose``."""
        found = {n.name: n.meta.get(LIFTED_FROM, origin_of(n)) for n in self.graph.graph.nodes}
        return {name: origin for name, origin in found.items() if origin is not None}

    @property
    def peak(self) -> NodeMemory:
        """The first node at which estimated live bytes are highest.

        Raises:
            ValueError: the graph is empty.
        """
        memory = self.memory
        if not memory:
            raise ValueError("the captured graph has no nodes, so it has no peak")
        return max(memory, key=lambda m: m.live)

    @property
    def text(self) -> str:
        """The graph for reading: a line a node, with its bytes and where it comes from.

        Columns: bytes live while the node runs, bytes that it allocates (``?`` where the
        size is unknown), the node, and its autograd node or forward source line.
        """
        known = {m.node: m for m in self.memory}
        lines = [f"{'live':>12} {'allocated':>12}  node"]
        for node in self.graph.graph.nodes:
            if (memory := known.get(node.name)) is None:
                continue
            allocated = f"{memory.allocated:,}" if memory.known else "?"
            lines.append(f"{memory.live:>12,} {allocated:>12}  {_expression(node)}{_where(node)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Listener:
    """Functions that are told of captures and of runs of captured graphs.

    Attributes:
        captured: a graph was captured (a miss of the engine's cache).
        ran: a captured graph is about to run; True if it was captured for an earlier backward
            (a hit of the cache).
    """

    captured: Callable[[CapturedBackward], None]
    ran: Callable[[CapturedBackward, bool], None]


class CaptureLog:
    def __init__(self) -> None:
        self._signatures: deque[Signature] = deque(maxlen=KEPT)
        self.listeners: list[Listener] = []

    def captured(self, capture: CapturedBackward) -> CapturedBackward:
        """Note a capture, give it its reason and tell the listeners."""
        capture.reason = why_captured(capture, tuple(self._signatures))
        # Without the graph, which would be kept alive.
        self._signatures.append(Signature(capture.id, capture.calls, capture.shapes, capture.sizes))
        for listener in tuple(self.listeners):
            listener.captured(capture)
        return capture

    def ran(self, capture: CapturedBackward) -> None:
        hit = next(capture.runs) > 0
        for listener in tuple(self.listeners):
            listener.ran(capture, hit)

    def clear(self) -> None:
        self._signatures.clear()


def why_captured(new: Signature, earlier: tuple[Signature, ...]) -> str:
    """In what ``new`` differs from the most similar earlier capture, in words.

    Most of what C++ keys its cache by is visible here; where nothing visible differs, it says so.
    """
    if not earlier:
        return "the first capture"
    same_calls = [s for s in earlier if s.calls == new.calls]
    if not same_calls:
        nearest = max(earlier, key=lambda s: _common(s.calls, new.calls))
        at = _common(nearest.calls, new.calls)
        ours, theirs = ([*s.calls, "the end"][at] for s in (new, nearest))
        return (
            f"other autograd nodes: at call {at} {ours} instead of {theirs} in capture {nearest.id}"
        )
    last = max(same_calls, key=lambda s: (_alike(s, new), s.id))
    if len(last.shapes) != len(new.shapes):
        return (
            f"{len(new.shapes)} lifted tensors instead of {len(last.shapes)} in capture {last.id}: "
            f"gradients to accumulate into, or saved tensors, came or went"
        )
    if len(last.sizes) != len(new.sizes):
        return (
            f"{len(new.sizes)} dynamic sizes instead of {len(last.sizes)} in capture {last.id}: "
            f"sizes that changed are lifted from now on"
        )
    for i, (shape, before) in enumerate(zip(new.shapes, last.shapes, strict=True)):
        if shape != before:
            return f"lifted tensor {i} has shape {shape} instead of {before} in capture {last.id}"
    return (
        f"the same nodes and shapes as capture {last.id}: hooks, constants or grad modes differ, "
        f"or the cache was cleared"
    )


def _alike(a: Signature, b: Signature) -> tuple[bool, int, bool]:
    return (
        len(a.shapes) == len(b.shapes),
        sum(x == y for x, y in zip(a.shapes, b.shapes, strict=False)),
        len(a.sizes) == len(b.sizes),
    )


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    pairs = zip(a, b, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _expression(node: Any) -> str:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    if node.op == "output":
        return f"return {node.args[0]}"
    if target == "getitem":
        return f"{node.name} = {node.args[0]}[{node.args[1]}]"
    arguments = ", ".join(map(str, node.all_input_nodes))
    return f"{node.name} = {target}({arguments})"


def _where(node: Any) -> str:
    origin = node.meta.get(LIFTED_FROM, origin_of(node))
    if origin is None:
        return ""
    frames, module = forward_frames(node), forward_module(node)
    forward = f", forward {frames[-1].location}" if frames else ""
    forward += f" in {module[0]}" if module and module[0] else ""
    of = node.meta.get(GRADIENT_OF)
    return f"  # {origin.label}{forward}{f': gradient of {of}' if of else ''}"


# --- the estimate --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class SharedMemory:
    """Memory shared by some nodes."""

    nbytes: int = 0  # 0 if unknown
    at_entry: bool = False  # live when the graph begins
    live_at_end: bool = False  # live when it ends
    outside: bool = False  # a parameter's or existing gradient's, not counted


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Estimated memory of one node."""

    node: str  # its name
    allocated: int  # bytes that come to life at it
    freed: int  # bytes that die after it
    live: int  # bytes live while it runs, inputs and outputs included
    known: bool  # not so if it makes a value of unknown size


class _SharedMemories:
    """Memory that each node of a graph reads and makes."""

    def __init__(self, graph: Graph) -> None:
        self.all: list[SharedMemory] = []
        self.made: dict[Node, list[SharedMemory]] = {}
        """Memory that comes to life at a node."""
        self.used: dict[Node, list[SharedMemory]] = {}
        """Memory that must be live while a node runs."""
        self.unknown: set[Node] = set()
        """Nodes that make a value of unknown size."""
        self._of: dict[Node, SharedMemory] = {}
        self._groups: dict[Any, SharedMemory] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            used = dict.fromkeys(self._of[a] for a in node.all_input_nodes if a in self._of)
            self.used[node] = list(used)
            if node.op == "output":
                for memory in used:
                    memory.live_at_end = True
            elif nodes.is_accumulate_grad(node):
                self._accumulation(node)
            elif nodes.is_item_of_argument(node):
                self._input(node)
            else:
                self._inner(node)

    def live_at(self, node: Node) -> tuple[SharedMemory, ...]:
        """Memory that is live while ``node`` runs because of it."""
        return (*self.used[node], *self.made.get(node, ()))

    def _input(self, node: Node) -> None:
        if (value := value_of(node)) is not None:
            # What shares no memory has no group.
            group = node.meta.get(INPUT_GROUP, node)
            if (memory := self._groups.get(group)) is None:
                memory = self._groups[group] = SharedMemory(at_entry=True)
                self.all.append(memory)
            memory.nbytes = max(memory.nbytes, value.nbytes or 0)
            memory.outside |= value.persistent
            self._of[node] = memory

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

    def _new(self, node: Node, born_at: Node, value: ValueInfo | None) -> SharedMemory:
        nbytes = None if value is None else value.nbytes
        if nbytes is None:
            self.unknown.add(node)
        memory = SharedMemory(nbytes or 0)
        self.made.setdefault(born_at, []).append(memory)
        self.all.append(memory)
        return memory

    def _accumulation(self, node: Node) -> None:
        variable, current, new = nodes.accumulated(node)
        if current is not None:
            if current in self._of:
                self._of[node] = self._of[current]
                self._of[node].outside = True
            return
        taken = self._of.get(new) if new is not None and nodes.takes_gradient(node) else None
        self._of[node] = taken or self._new(node, node, value_of(variable))
        self._of[node].live_at_end = True


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
    if name in ("validate_outputs", "aot_tangents"):
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
    shared = _SharedMemories(graph)
    order = [n for n in graph.nodes if n.op != "placeholder"]
    left = Counter(m for n in order for m in shared.live_at(n))
    live = sum(m.nbytes for m in shared.all if m.at_entry and not m.outside)
    found = []
    for node in order:
        allocated = sum(m.nbytes for m in shared.made.get(node, ()))
        live += allocated
        freed = 0
        for memory in shared.live_at(node):
            left[memory] -= 1
            if left[memory] == 0 and not memory.live_at_end and not memory.outside:
                freed += memory.nbytes
        found.append(NodeMemory(node.name, allocated, freed, live, node not in shared.unknown))
        live -= freed
    return found

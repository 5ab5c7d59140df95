"""Captured backwards: their graphs, and why no earlier graph could be used."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule

from .nodes import (
    GRADIENT_OF,
    LIFTED_FROM,
    NodeOrigin,
    forward_frames,
    forward_module,
    origin_of,
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
        used_sizes: indices of the lifted sizes that the graph reads.
        inputs_to_cuda: indices of inputs that the graph expects on a GPU, and which.
        reason: why no earlier graph could be used.
        disagreements: sentences about backwards of compiled functions that are not as their
            forward's description says, or whose description could not be read: torch's own word
            is taken for them.
    """

    graph: GraphModule
    used_sizes: tuple[int, ...]
    inputs_to_cuda: dict[int, torch.device]
    reason: str = ""
    disagreements: Sequence[str] = ()
    runs: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def origins(self) -> dict[str, NodeOrigin]:
        """Node name -> the autograd node that it belongs to; of what was lifted out of the
        autograd graph only with ``TORCH_LOGS=compiled_autograd_verbose``."""
        found = {n.name: n.meta.get(LIFTED_FROM, origin_of(n)) for n in self.graph.graph.nodes}
        return {name: origin for name, origin in found.items() if origin is not None}

    @property
    def text(self) -> str:
        """Graph for reading: a line a node, with its autograd node and forward source line."""
        nodes = self.graph.graph.nodes
        return "\n".join(f"{_expression(n)}{_where(n)}" for n in nodes if n.op != "placeholder")

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

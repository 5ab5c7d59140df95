"""Captured backwards: their graphs, and who is told of them."""

from __future__ import annotations

import itertools
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


@dataclass(slots=True)
class CapturedBackward:
    """One captured backward.

    Attributes:
        id: number of the capture; Dynamo's compile ids of it begin with ``!<id>/``.
        calls: names of the autograd nodes, in the engine's order.
        graph: the captured graph after the passes; it takes the five lists of
            ``nodes.PLACEHOLDERS``.
        used_sizes: indices of the lifted sizes that the graph reads.
        inputs_to_cuda: indices of inputs that the graph expects on a GPU, and which.
        disagreements: sentences about backwards of compiled functions that are not as their
            forward's description says, or whose description could not be read: torch's own word
            is taken for them.
    """

    id: int
    calls: tuple[str, ...]
    graph: GraphModule
    used_sizes: tuple[int, ...]
    inputs_to_cuda: dict[int, torch.device]
    disagreements: Sequence[str] = ()
    runs: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def origins(self) -> dict[str, NodeOrigin]:
        """Node name -> the autograd node that it belongs to; of what was lifted out of the
        autograd graph only with ``TORCH_LOGS=compiled_autograd_verbose``."""
        found = {n.name: n.meta.get(LIFTED_FROM, origin_of(n)) for n in self.graph.graph.nodes}
        return {name: origin for name, origin in found.items() if origin is not None}

    def __str__(self) -> str:
        """Graph for reading: a line a node, with its autograd node and forward source line."""
        nodes = self.graph.graph.nodes
        return "\n".join(f"{_expression(n)}{_where(n)}" for n in nodes if n.op != "placeholder")


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

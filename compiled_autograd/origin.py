"""Where a captured node comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from memprof.profiler.model import SourceFrame
from memprof.profiler.stack_text import innermost_module, parse_stack_trace

META = "autograd_origin"
"""Key of a node's ``NodeOrigin`` in its ``meta``."""
_ENGINE = '  File "<autograd engine>"'
"""How the stack trace begins of a node that has no forward operator of its own."""


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The autograd node that a captured FX node belongs to.

    Attributes:
        autograd_node: its name, e.g. ``AddmmBackward0``.
        call_index: its place in the engine's order of this backward, from 0.
        aot_id: of an AOTAutograd backward, AOTAutograd's id of the graph (and its forward).
        aot_node: of an inlined node, its name in AOTAutograd's backward graph.
    """

    autograd_node: str
    call_index: int
    aot_id: int | None = None
    aot_node: str | None = None

    @property
    def label(self) -> str:
        """e.g. ``AddmmBackward0 (NodeCall 3)``, as torch's own compiled autograd writes it."""
        aot = "" if self.aot_id is None else str(self.aot_id)
        return f"{self.autograd_node}{aot} (NodeCall {self.call_index})"

    @property
    def stack_trace(self) -> str:
        """In the form of a Python frame, which is what FX prints above a node."""
        return f"{_ENGINE}, line {self.call_index}, in {self.autograd_node}\n    {self.label}\n"


def is_engine_frame(frame: SourceFrame) -> bool:
    """Whether a frame stands for a plain autograd node and is no line of anybody's code."""
    return frame.file == "<autograd engine>"


def origin_of(node: Node) -> NodeOrigin | None:
    """The origin of a captured node; None for placeholders and what is read from them unused."""
    found: NodeOrigin | None = node.meta.get(META)
    return found


def forward_frames(node: Node) -> tuple[SourceFrame, ...]:
    """User frames of the forward operator whose gradient ``node`` computes, outermost first.

    Known for nodes of AOTAutograd's backward graphs. Of a plain autograd node torch keeps
    no frames, so there the result is empty and ``origin_of`` is what there is.
    """
    if (origin := origin_of(node)) is None or origin.aot_node is None:
        return ()
    trace = node.meta.get("stack_trace") or ""
    return () if trace.startswith(_ENGINE) else parse_stack_trace(trace)


def forward_module_stack(node: Node) -> dict[str, tuple[str, Any]] | None:
    """The same with the modules around it, in the form of ``meta["nn_module_stack"]``."""
    return node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")


def forward_module(node: Node) -> tuple[str, str] | None:
    """``(path, class name)`` of the module whose gradient ``node`` computes, if known."""
    return innermost_module(forward_module_stack(node))

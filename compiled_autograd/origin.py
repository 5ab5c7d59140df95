"""Where a captured node comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from memprof.profiler.model import SourceFrame

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
    return () if trace.startswith(_ENGINE) else _frames(trace)


def forward_module_stack(node: Node) -> dict[str, tuple[str, Any]] | None:
    """The same with the modules around it, in the form of ``meta["nn_module_stack"]``."""
    return node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack")


def forward_module(node: Node) -> tuple[str, str] | None:
    """``(path, class name)`` of the module whose gradient ``node`` computes, if known."""
    if not (stack := forward_module_stack(node)):
        return None
    path, module = list(stack.values())[-1]
    name = module if isinstance(module, str) else getattr(module, "__name__", str(module))
    return _module_path(path), name.rpartition(".")[2]


def _module_path(path: str) -> str:
    """``L['self']._modules['a'].b`` or ``L['fn'].a.b`` -> ``a.b``: without the variable."""
    steps = re.findall(r"[\w-]+", path.replace("._modules", ""))
    if steps[:1] == ["L"]:
        steps = steps[2:]
    return ".".join(steps)


def _frames(text: str) -> tuple[SourceFrame, ...]:
    frames = []
    lines = text.split("\n")
    for at, line in enumerate(lines):
        line = line.strip()
        if not line.startswith('File "'):
            continue
        file, _, rest = line[len('File "') :].partition('", line ')
        number, _, function = rest.partition(", in ")
        code = lines[at + 1].strip() if at + 1 < len(lines) else ""
        if number.isdigit():
            frames.append(SourceFrame(file, int(number), function, code))
    return tuple(frames)

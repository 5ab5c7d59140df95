"""Describes what is noted of a captured node in its ``meta``: where it comes from, and its value's
memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils.weak import WeakIdKeyDictionary

from memprof.profiler.model import SourceFrame
from memprof.profiler.stack_text import innermost_module, parse_stack_trace

from . import _torch_capture, _torch_compat

# Keys in the ``meta`` of any node: its ``NodeOrigin``; its ``ValueInfo``.
ORIGIN = "autograd_origin"
VALUE = "autograd_value"
# Keys in the ``meta`` of ``inputs[i]``.
INPUT_GROUP = "autograd_input_group"
"""A number that inputs sharing a storage have in common."""
GRADIENT_GROUP = "autograd_gradient_group"
"""Of a leaf: the same number of its gradient until now, if that has a storage of its own."""
HAS_GRADIENT = "autograd_has_gradient"
"""Of a leaf which has a gradient until now."""
TENSOR_NAME = "autograd_tensor_name"
"""The tensor's name in ``NAMES``, if it has one."""
LAYOUT = "autograd_layout"
"""Layout of the tensor, or of its gradient until now, if that is not strided."""
LIFTED_FROM = "autograd_lifted_from"
"""Also of sizes and scalars: the ``NodeOrigin`` of the node that it was lifted from, if C++
was asked for it (``TORCH_LOGS=compiled_autograd_verbose``)."""

_ENGINE = '  File "<autograd engine>"'
"""How the stack trace begins of a node that has no forward operator of its own."""

NAMES: Any = WeakIdKeyDictionary()
"""Names of tensors of this process, from who has seen them: the engine hands over none."""


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """The autograd node that a captured FX node belongs to."""

    autograd_node: str  # e.g. ``AddmmBackward0``
    call_index: int  # place in the engine's order of this backward, from 0
    aot_id: int | None = None  # AOTAutograd's id of the graph (and its forward)
    aot_node: str | None = None  # name of an inlined node in AOTAutograd's backward graph

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
    """Tells whether a frame stands for a plain autograd node and is no line of anybody's code."""
    return frame.file == "<autograd engine>"


def origin_of(node: Node) -> NodeOrigin | None:
    """None for placeholders and what is read from them unused."""
    found: NodeOrigin | None = node.meta.get(ORIGIN)
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


def forward_module(node: Node) -> tuple[str, str] | None:
    """``(path, class name)`` of the module whose gradient ``node`` computes, if known."""
    meta = node.meta
    return innermost_module(meta.get("fwd_nn_module_stack") or meta.get("nn_module_stack"))


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """Memory of one value, as far as it is known before anything ran."""

    nbytes: int | None  # None if unknown
    device: torch.device
    shape: tuple[int, ...] | None = None  # at the sizes of the capture
    dtype: torch.dtype | None = None
    persistent: bool = False  # something outside the graph holds it: a parameter, a gradient
    exact: bool = False  # shape, dtype and device are these at every run of the graph


def of_sizes(
    sizes: Sequence[Any],
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    persistent: bool = False,
    exact: bool = False,
) -> ValueInfo:
    """Of a dense tensor, whose sizes are numbers or symbols; not ``exact`` if one is a symbol."""
    hints = tuple(_torch_capture.hint(s) for s in sizes)
    shape = tuple(s for s in hints if s is not None)
    if len(shape) < len(hints) or dtype is None:
        return ValueInfo(None, device, dtype=dtype, persistent=persistent)
    exact = exact and all(isinstance(s, int) for s in sizes)
    return ValueInfo(math.prod(shape) * dtype.itemsize, device, shape, dtype, persistent, exact)


def of_tensor(tensor: torch.Tensor, *, persistent: bool = False, exact: bool = False) -> ValueInfo:
    return of_sizes(tensor.shape, tensor.dtype, tensor.device, persistent=persistent, exact=exact)


def of_output(metadata: Any) -> ValueInfo | None:
    """From what C++ demands of a gradient that an autograd node hands on."""
    found = _torch_compat.output_size(metadata)
    return None if found is None else of_sizes(*found)


def value_of(node: Any) -> ValueInfo | None:
    """Returns what is known of ``node``; None also for what is no node."""
    found: ValueInfo | None = node.meta.get(VALUE) if isinstance(node, Node) else None
    return found

"""Nodes of captured graphs: what is noted in their ``meta``, what they call, what they are.

Note [Gradients that may be None]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An autograd.Function may return None for an input that requires grad. At capture nobody knows, so
the engine walks on as if there were a gradient. C++ nodes, accumulations and both sides of
CopySlices (the node of a view that was written in place) take None and hand it on. Of what may come
from an autograd.Function, an addition returns its other argument, and an autograd.Function or
AOTAutograd's graph gets zeros, as from the normal engine (also after
``set_materialize_grads(False)``: nobody can ask for that).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.weak import WeakIdKeyDictionary

from memprof.profiler.live.stack_text import innermost_module, parse_stack_trace
from memprof.profiler.model import SourceFrame

from . import _torch_compat

PLACEHOLDERS = ("inputs", "sizes", "scalars", "hooks", "packed_data")
"""Arguments of every captured graph, each a list: lifted tensors; lifted sizes; lifted Python
numbers; hooks, contexts and other objects; what saved-tensor hooks packed."""

# --- what is noted of a node ---------------------------------------------------------------

# Keys in the ``meta`` of any node: its ``NodeOrigin``; its ``ValueInfo``.
ORIGIN = "autograd_origin"
VALUE = "autograd_value"
# Keys in the ``meta`` of ``inputs[i]``.
INPUT_GROUP = "autograd_input_group"
"""A number that inputs sharing a storage have in common."""
GRADIENT_GROUP = "autograd_gradient_group"
"""On a leaf: ``INPUT_GROUP`` of its gradient until now, if that has a storage of its own."""
HAS_GRADIENT = "autograd_has_gradient"
"""Set on a leaf that already has a gradient."""
TENSOR_NAME = "autograd_tensor_name"
"""The tensor's name in ``NAMES``, if it has one."""
LAYOUT = "autograd_layout"
"""Layout of the tensor, or of its gradient until now, if that is not strided."""
LIFTED_FROM = "autograd_lifted_from"
"""``NodeOrigin`` of the node that an input, size or scalar was lifted from, if C++ was
asked for it (``TORCH_LOGS=compiled_autograd_verbose``)."""

SAVED_AS = "autograd_saved_as"
"""``(AOTAutograd's id of a graph, output of its forward)`` of a saved tensor, from the forward's
description."""
GRADIENT_OF = "autograd_gradient_of"
"""Name of the forward's input whose gradient a node of an inlined graph is."""

_ENGINE = '  File "<autograd engine>"'
"""First line of the stack trace of a node that has no forward operator of its own."""

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
        """Label in the form of a Python frame, which is what FX prints above a node."""
        return f"{_ENGINE}, line {self.call_index}, in {self.autograd_node}\n    {self.label}\n"


def is_engine_frame(frame: SourceFrame) -> bool:
    """Tells whether a frame stands for a plain autograd node and is no line of anybody's code."""
    return frame.file == "<autograd engine>"


def origin_of(node: Node) -> NodeOrigin | None:
    """Autograd node that ``node`` comes from; None for placeholders and unused reads of these."""
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
    """Device, shape and type of one value, as far as they are known before anything ran."""

    device: torch.device
    shape: tuple[int, ...] | None = None  # at the sizes of the capture
    dtype: torch.dtype | None = None
    exact: bool = False  # shape, dtype and device are these at every run of the graph


def of_sizes(
    sizes: Sequence[Any],
    dtype: torch.dtype | None,
    device: torch.device,
    *,
    exact: bool = False,
) -> ValueInfo:
    """Info of a dense tensor of these sizes, numbers or symbols; not ``exact`` with a symbol."""
    hints = tuple(_torch_compat.hint(s) for s in sizes)
    shape = tuple(s for s in hints if s is not None)
    if len(shape) < len(hints) or dtype is None:
        return ValueInfo(device, dtype=dtype)
    exact = exact and all(isinstance(s, int) for s in sizes)
    return ValueInfo(device, shape, dtype, exact)


def of_tensor(tensor: torch.Tensor, *, exact: bool = False) -> ValueInfo:
    return of_sizes(tensor.shape, tensor.dtype, tensor.device, exact=exact)


def of_output(metadata: Any) -> ValueInfo | None:
    """Info of a gradient that an autograd node hands on, by C++'s demands; None if unknown."""
    found = _torch_compat.output_size(metadata)
    return None if found is None else of_sizes(*found)


def value_of(node: Any) -> ValueInfo | None:
    """Size, device and type of a node's value; None if unknown or ``node`` is no node."""
    found: ValueInfo | None = node.meta.get(VALUE) if isinstance(node, Node) else None
    return found


# --- what captured graphs call -------------------------------------------------------------


def call_hook(hook: Callable[..., Any], *args: Any, hook_type: str, **kwargs: Any) -> Any:
    """``hook(*args)``; None means "unchanged".

    Raises:
        TypeError, RuntimeError: ``Tensor.register_hook`` returned no gradient of the same size,
            dtype and device type. The engine checks that too, and a captured graph has nothing
            else that would: a gradient of size 1 would be broadcast into the parameter's.
    """
    result = _torch_compat.call_hook(hook, *args, hook_type=hook_type, **kwargs)
    if hook_type == "tensor_pre_hook" and result is not args[0]:
        given = args[0]
        if given is None:
            raise RuntimeError("a tensor's hook has made a gradient where none arrived")
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"a tensor's hook must return a Tensor or None, not {type(result)}")
        if result.size() != given.size():
            raise RuntimeError("a tensor's hook has changed the size of the gradient")
        if result.dtype is not given.dtype or result.device.type != given.device.type:
            raise RuntimeError("a tensor's hook has changed the type of the gradient")
    return result


def call_cpp_tensor_pre_hooks(index: int, gradient: torch.Tensor | None) -> Any:
    """The hook of ``retain_grad()``. C++ would take None for a tensor and crash."""
    if gradient is None:
        return None
    return _torch_compat.call_cpp_tensor_pre_hooks(index, gradient)


def take_gradient(
    variable: torch.Tensor, gradient: torch.Tensor | None, has_post_hooks: bool
) -> torch.Tensor | None:
    """Make ``gradient`` that of ``variable``, which has none; a copy where strides differ.

    None, if an autograd.Function gave no gradient, leaves it without.

    Called from captured graphs where nobody else holds ``gradient``. Dynamo inlines it and
    decides while it traces. It guards on every global that it meets on the way, at each
    run, so in the usual case there is none.
    """
    if gradient is None:
        return None
    if (
        gradient.layout is variable.layout
        and gradient.dtype is variable.dtype
        and gradient.size() == variable.size()
        and (
            gradient.is_contiguous()
            if variable.is_contiguous()
            else variable.dim() == 4
            and variable.is_contiguous(memory_format=torch.channels_last)
            and gradient.is_contiguous(memory_format=torch.channels_last)
        )
    ):
        variable.grad = gradient.detach()
        return variable.grad
    return _torch_compat.call_first_accumulate_grad(  # type: ignore[no-any-return]
        variable, gradient, has_post_hooks
    )


def add_gradients(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None:
        return b
    return a if b is None else torch.add(a, b)


def zeros_for_none(
    gradient: torch.Tensor | None, sizes: list[int], dtype: torch.dtype | None, device: torch.device
) -> torch.Tensor:
    if gradient is None:
        return torch.zeros(sizes, dtype=dtype, device=device)
    return gradient


def copy_slices_prologue_or_none(
    gradients: list[torch.Tensor | None], *geometry: Any
) -> Sequence[torch.Tensor | None]:
    """``copy_slices_prologue``, or no gradients where the base gets none."""
    if gradients[0] is None:
        return [None, None, None]
    return _torch_compat.copy_slices_prologue(gradients, *geometry)  # type: ignore[no-any-return]


def copy_slices_epilogue_or_none(
    needs_input_grad: list[bool],
    result: torch.Tensor | None,
    computed: list[torch.Tensor | None],
    grad_slice: torch.Tensor | None,
) -> Sequence[torch.Tensor | None]:
    """``copy_slices_epilogue``, or no gradients where the base gets none, not even those that an
    autograd.Function made of zeros: the engine would not have called it."""
    if result is None:
        return [None] * len(needs_input_grad)
    return _torch_compat.copy_slices_epilogue(  # type: ignore[no-any-return]
        needs_input_grad, result, computed, grad_slice
    )


# --- nodes -------------------------------------------------------------------------------


def is_hook(node: Node, kind: str | None = None) -> bool:
    return node.target is call_hook and (kind is None or node.kwargs.get("hook_type") == kind)


def before_hooks(returned: Node) -> Node:
    """Node that ``grad()`` must return in place of ``returned``, the gradient after hooks.

    The normal engine hands it out before the tensor's hooks if the tensor's autograd node
    runs too, and after them if not; C++ gives what the hooks made of it in both cases.
    """
    origin = origin_of(returned)
    before, hooks = returned, set()
    while (
        is_hook(before, "tensor_pre_hook") or before.target is call_cpp_tensor_pre_hooks
    ) and origin_of(before) == origin:
        hooks.add(before)
        before = before.args[1]  # type: ignore[assignment]
    runs = hooks and any(
        origin_of(n) == origin and n not in hooks and not is_item_of_argument(n)
        for n in returned.graph.nodes
    )
    return before if runs else returned


def is_accumulate_grad(node: Node) -> bool:
    return node.target is _torch_compat.call_accumulate_grad or takes_gradient(node)


def takes_gradient(node: Node) -> bool:
    """Tells whether ``node`` hands a parameter its first gradient without a copy."""
    return node.target is take_gradient


def accumulated(node: Node) -> tuple[Node, Node | None, Node | None]:
    """``(variable, its gradient until now, what is added)`` of an accumulation.

    The gradient until now is an argument from torch 2.13 on, and None where there was none.
    """
    nodes: list[Any] = [a if isinstance(a, Node) else None for a in node.args[:-1]]
    # take_gradient() and, up to 2.12, an accumulation have two.
    variable, current, new = (nodes[0], None, nodes[1]) if len(nodes) == 2 else nodes
    return variable, current, new


def accumulated_leaf(node: Node) -> Node | None:
    """In a Dynamo graph of a captured backward: the leaf whose new gradient ``node`` is.

    None if ``node`` is no new gradient of a leaf.
    """
    if is_getitem(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    target: Any = node.target
    if not _torch_compat.is_builtin_op(target) or target.__name__ != "AccumulateGrad":
        return None
    leaf = node.args[1]
    return leaf if isinstance(leaf, Node) else None


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def is_item_of_argument(node: Node) -> bool:
    """Tells whether ``node`` is ``inputs[i]`` or the like: available from the start."""
    return node.op == "placeholder" or (
        is_getitem(node) and isinstance(node.args[0], Node) and node.args[0].op == "placeholder"
    )


def has_side_effects(node: Node) -> bool:
    """Tells whether ``node`` must run although nobody uses its value."""
    if node.op in ("placeholder", "output"):
        return True
    return runs_python(node) or is_accumulate_grad(node) or is_final(node) or node.is_impure()


def is_final(node: Node) -> bool:
    return node.target is _torch_compat.run_final_callbacks


def runs_python(node: Node) -> bool:
    """Tells whether ``node`` runs code that is not torch's and may do anything."""
    called = (call_hook, call_cpp_tensor_pre_hooks, _torch_compat.call_backward)
    return node.op == "call_module" or (node.op == "call_function" and node.target in called)


VIEW_NODES = frozenset(
    (
        "TBackward0",
        "TransposeBackward0",
        "TransposeBackward1",
        "PermuteBackward0",
        "UnsqueezeBackward0",
        "SqueezeBackward0",
        "SqueezeBackward1",
        "SqueezeBackward2",
        "ViewBackward0",
        "UnsafeViewBackward0",
        "ReshapeAliasBackward0",
    )
)
"""Plain autograd nodes whose one result is a view of the whole gradient."""

_VIEWS = VIEW_NODES | {
    "validate_outputs",
    "aot_backward_prologue",
    "aot_tangents",
    "make_subclass",
    "AliasBackward0",
    "ViewAsBackward0",
}
"""Functions whose value is (usually) a view of an argument."""


def aliased_inputs(node: Node) -> list[Node]:
    """Arguments whose memory the value of ``node`` may share."""
    if node.op != "call_function":
        return []
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target is torch.ops.aten.reshape.default:
            return _nodes(node.args[:1])
        arguments = zip(node.args, target._schema.arguments, strict=False)
        return _nodes(value for value, a in arguments if a.alias_info is not None)
    if target is operator.getitem:
        return [a for a in _nodes(node.args[:1]) if a.op != "placeholder"]
    if is_hook(node) or target is call_cpp_tensor_pre_hooks:
        return _nodes(node.args[1:2])
    if target is add_gradients or target is zeros_for_none:
        return _nodes(node.args[:2])
    epilogues = (_torch_compat.copy_slices_epilogue, copy_slices_epilogue_or_none)
    is_view = getattr(target, "__name__", "") in _VIEWS
    shares = is_view or is_accumulate_grad(node) or target in epilogues
    return list(node.all_input_nodes) if shares else []


def _nodes(values: Iterable[Any]) -> list[Node]:
    found: list[Node] = []
    torch.fx.node.map_arg(tuple(values), lambda n: found.append(n))
    return found


def placeholders(graph: Graph) -> dict[str, Node]:
    """The graph's arguments by name."""
    found = {str(n.target): n for n in graph.find_nodes(op="placeholder")}
    assert tuple(found) == PLACEHOLDERS, f"not a captured graph: {list(found)}"
    return found

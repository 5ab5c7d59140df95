"""Inlining of an AOTAutograd backward: its prologue, its graph node by node, its epilogue.

Note [Why the graph is inlined]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
To the engine an AOTAutograd backward is one node. Called as one, it would be opaque to the
passes and to the compiler, and no gradient could be accumulated before all of them exist. So the
graph that AOTAutograd compiles for its own use is copied in. The prologue (which selects gradients
and takes tensor subclasses apart) is called as it is, a function of constants and its arguments.
The epilogue (which drops tokens and RNG offsets and rebuilds subclasses) runs at capture: it only
rearranges values, and where it rebuilds a subclass it calls back, which becomes a node.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from . import _torch_compat
from .errors import CaptureError
from .nodes import ORIGIN, VALUE, of_tensor
from .tracer import GraphTracer

# Of AOTAutograd's own metadata only this says something about the copy; values ("val") are
# fakes of another fake mode, which Dynamo must not see.
_KEPT_META = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "original_aten",
    "source_fn_stack", "fwd_source_fn_stack", "partitioner_tag", "custom",
)  # fmt: skip


class AotInliner:
    def __init__(self, tracer: GraphTracer) -> None:
        self._tracer = tracer
        self._times: Counter[int] = Counter()
        self._named: set[Node] = set()

    def inline(
        self,
        ctx: Any,
        grads: Sequence[Any],
        saved_tensors: Sequence[torch.Tensor],
        backward_state: int | None,
        opaque_objects: Sequence[int],
    ) -> list[Node | None]:
        """Nodes of the gradients that the node returns; arguments as ``proxy_call_backward``'s.

        Raises:
            CaptureError: the backward graph was not kept.
        """
        tracer = self._tracer
        function = ctx._forward_cls
        try:
            module = _torch_compat.aot_backward_module(function)
        except LookupError as error:
            raise CaptureError(
                f"the compiled backward came from AOTAutograd's cache, which keeps no graph to "
                f"inline ({error}); compile the forward inside `enable()`, or with "
                f"torch._functorch.config.enable_autograd_cache = False"
            ) from error
        symints = [tracer.lift(s) for s in _torch_compat.aot_symints(ctx)]
        saved = tracer.lift(list(saved_tensors))
        objects = [tracer.item("hooks", i) for i in opaque_objects]
        prologue = tracer.call(
            _prologue(function), (saved, symints, objects, tracer.lift(list(grads)))
        )
        # What the graph's placeholders are: sizes, saved tensors and gradients, hooks.
        count = len(module.graph.find_nodes(op="placeholder"))
        handed = range(len(symints), count - (backward_state is not None))
        arguments = symints + [tracer.part(prologue, i) for i in handed]
        if backward_state is not None:
            arguments.append(tracer.item("hooks", backward_state))
        return self._epilogue(function, self._copy(module, function._aot_id, arguments))

    def _copy(self, module: GraphModule, aot_id: int, arguments: list[Any]) -> list[Any]:
        """Copy the graph; its outputs as nodes or constants."""
        tracer = self._tracer
        # ``mm_3`` of graph 1 becomes ``aot1_mm_3``, so that both graphs can be read together, and
        # ``aot1_1_mm_3`` where the graph is called again in one backward.
        nth = self._times[aot_id]
        self._times[aot_id] += 1
        prefix = f"aot{aot_id}_{nth}_" if nth else f"aot{aot_id}_"
        base = tracer.origin
        assert base is not None
        copies: dict[Node, Any] = {}
        remaining = iter(arguments)

        for node in module.graph.nodes:
            if node.op == "output":
                return [copies[v] if isinstance(v, Node) else v for v in node.args[0]]
            if node.op == "placeholder":
                copy = next(remaining)
                if not isinstance(copy, Node):  # a size that is a plain number here
                    copies[node] = copy
                    continue
            else:
                target = node.target
                if node.op in ("get_attr", "call_module"):
                    target = self._adopt(module, str(target))
                elif target is torch.ops.aten.view.default:
                    # The forward was compiled with its views turned into reshapes, so a
                    # gradient may have strides that no view can take.
                    target = torch.ops.aten.reshape.default
                args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
                copy = tracer.graph.create_node(node.op, target, args, kwargs)
                copy.meta["stack_trace"] = base.stack_trace
                copy.meta |= {key: node.meta[key] for key in _KEPT_META if key in node.meta}
                copy.meta[ORIGIN] = replace(base, aot_id=aot_id, aot_node=node.name)
            if copy not in self._named:
                self._named.add(copy)
                _torch_compat.rename_node(copy, prefix + node.name)
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.is_sparse:
                # What the graph computes has this shape whenever Dynamo's guards let it be
                # called; what comes in as a gradient may not.
                copy.meta[VALUE] = of_tensor(value, exact=node.op == "call_function")
            copies[node] = copy
        raise CaptureError("AOTAutograd's backward graph has no output")

    def _adopt(self, module: GraphModule, name: str) -> str:
        """Take an attribute of AOTAutograd's module over; its name here."""
        new = "aot_" + name.replace(".", "_")
        while hasattr(self._tracer.root, new):
            new += "_"
        setattr(self._tracer.root, new, operator.attrgetter(name)(module))
        return new

    def _epilogue(self, function: Any, outputs: list[Any]) -> list[Node | None]:
        tracer = self._tracer
        values = [tracer.new_value(o) if isinstance(o, Node) else o for o in outputs]

        def make_subclass(metadata: Any, is_runtime: bool, parts: Sequence[Any]) -> torch.Tensor:
            maker = _subclass_maker(metadata, is_runtime)
            return tracer.new_value(tracer.call(maker, tracer.lift(tuple(parts))))

        results = _run_epilogue(function, values, make_subclass)
        lifted = [tracer.lift(r) for r in results]
        return [node if isinstance(node, Node) else None for node in lifted]


# --- AOTAutograd's autograd.Function, as one of torch 2.11 to 2.15 has it -------------------


def _prologue(function: Any) -> Callable[..., Any]:
    """``(saved_tensors, symints, opaque_objects, grads) -> arguments of the backward graph``.

    Dynamo puts it into its graph as it is; it closes over constants only.
    """
    prologue = getattr(function, "_bw_prologue_fn", None)
    if prologue is None:  # up to 2.12
        inner = _torch_compat.aot_runtime_wrappers()._backward_prologue_functional
        metadata, subclasses = function.metadata, function.maybe_subclass_metadata

        def prologue(saved: Any, symints: Any, opaque: Any, grads: Sequence[Any]) -> Any:
            return inner(saved, symints, opaque, metadata, subclasses, *grads)

    def aot_backward_prologue(
        saved: Sequence[Any], symints: Sequence[Any], opaque: Sequence[Any], grads: Any
    ) -> Any:
        # It empties the lists that it is given; those of a graph cannot be written.
        return prologue(list(saved), list(symints), list(opaque), list(grads))

    return _torch_compat.allow_in_graph(aot_backward_prologue)


def _run_epilogue(
    function: Any, outputs: Sequence[Any], make_subclass: Callable[..., Any]
) -> Sequence[Any]:
    """Gradients from the graph's outputs; ``make_subclass`` rebuilds tensor subclasses."""
    epilogue = getattr(function, "_bw_epilogue_fn", None)
    override = {"make_subclass_override": make_subclass}
    subclasses = function.maybe_subclass_metadata
    if epilogue is None:  # up to 2.12
        inner = _torch_compat.aot_runtime_wrappers()._backward_epilogue_functional
        epilogue = functools.partial(inner, function.metadata, subclasses)
    elif subclasses is None:
        override = {}
    gradients: Sequence[Any] = epilogue(outputs, **override)
    return gradients


def _subclass_maker(metadata: Any, is_runtime: bool) -> Callable[..., Any]:
    """``(dense tensors and sizes) -> tensor subclass``, as AOTAutograd's own run-time wrapper."""

    def make_subclass(*parts: Any) -> Any:
        return metadata.creation_fn(parts, is_runtime=is_runtime)

    return _torch_compat.allow_in_graph(make_subclass)

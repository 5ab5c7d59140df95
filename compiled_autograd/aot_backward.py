"""Inlining of an AOTAutograd backward: its prologue, its graph node by node, its epilogue.

Note [Why the graph is inlined]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
To the engine an AOTAutograd backward is one node. Called as one, it would be opaque to the
passes and to the compiler, and no gradient could be accumulated before all of them exist. So the
graph that AOTAutograd compiles for its own use is copied in.

Note [What a description decides]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Where memprof's backend has compiled the forward, the autograd.Function carries the description of
that. It says which values of the node are saved tensors, sizes and gradients, in which layout each
gradient is handed on, and whose gradients come out: so saved values go straight into the graph, and
one call has the gradients alone. torch's own prologue, which selects gradients and takes tensor
subclasses apart, and its epilogue, which drops tokens and RNG offsets and rebuilds subclasses, run
where there is any of these, where nothing is described, and where the node is not as described,
which the ledger says. The prologue is called as it is, a function of constants and its arguments.
The epilogue runs at capture: it only rearranges values, and where it rebuilds a subclass it calls
back, which becomes a node.
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

from memprof.profiler.model import GraphDescription, Role, ViewAndMutationMeta

from . import _torch_compat
from .errors import CaptureError
from .nodes import GRADIENT_OF, ORIGIN, SAVED_AS, TENSOR_NAME, VALUE, of_tensor
from .tracer import GraphTracer

# Of AOTAutograd's own metadata only this says something about the copy; values ("val") are
# fakes of another fake mode, which Dynamo must not see.
_KEPT_META = (
    "stack_trace", "nn_module_stack", "fwd_nn_module_stack", "seq_nr", "original_aten",
    "source_fn_stack", "fwd_source_fn_stack", "partitioner_tag", "custom",
)  # fmt: skip


class AotInliner:
    """Copies backwards of compiled functions into the graph of one capture.

    Attributes:
        disagreements: what descriptions say of them otherwise than they are.
    """

    def __init__(self, tracer: GraphTracer) -> None:
        self._tracer = tracer
        self._times: Counter[int] = Counter()
        self._named: set[Node] = set()
        self.disagreements: list[str] = []

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
        state = [] if backward_state is None else [tracer.item("hooks", backward_state)]
        gradients = tracer.lift(list(grads))
        forward = described(function)
        if forward is not None and _needs_torch(function, forward.metadata):
            if len(saved) == len(forward.saved_tensors):
                _mark_saved(saved, function._aot_id, forward)
        elif forward is not None:
            others = len(symints) + len(objects) + len(state)
            why = _disagreement(forward, module, len(saved), len(gradients), others)
            if not why:
                _mark_saved(saved, function._aot_id, forward)
                tangents = self._tangents(function, forward.metadata, gradients)
                handed = [*symints, *saved, *objects, *tangents, *state]
                return _named(forward, self._copy(module, function._aot_id, handed))
            assert tracer.origin is not None
            label = tracer.origin.label
            self.disagreements.append(f"{label} is not as its forward is described: {why}")
        prologue = tracer.call(_prologue(function), (saved, symints, objects, gradients))
        # What the graph's placeholders are: sizes, saved tensors and gradients, hooks.
        count = len(module.graph.find_nodes(op="placeholder"))
        handed = [tracer.part(prologue, i) for i in range(len(symints), count - len(state))]
        outputs = self._copy(module, function._aot_id, [*symints, *handed, *state])
        return self._epilogue(function, outputs)

    def _tangents(
        self, function: Any, metadata: ViewAndMutationMeta, gradients: Sequence[Any]
    ) -> list[Node]:
        """The gradients that the graph takes, in the layouts that it was compiled for."""
        taken = [gradients[i] for i in metadata.tangents]
        if not taken:
            return []
        call = self._tracer.call(_in_layouts(function, metadata), (taken,))
        return [self._tracer.part(call, i) for i in range(len(taken))]

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
                _torch_compat.rename_node(copy, prefix + copy.meta.get(TENSOR_NAME, node.name))
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not value.is_sparse and VALUE not in copy.meta:
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


# --- what the description decides: Note [What a description decides] ------------------------


def described(function: Any) -> GraphDescription | None:
    """The description of the forward that belongs to AOTAutograd's autograd.Function, which whoever
    compiles it leaves there as ``memprof_description``; None if nobody has."""
    found: GraphDescription | None = getattr(function, "memprof_description", None)
    return found


def _disagreement(
    forward: GraphDescription, module: GraphModule, saved: int, gradients: int, others: int
) -> str:
    """Words for where a description differs from the backward that it is of, or for why it says
    nothing; "" if it is right.

    Args:
        module: the backward's graph.
        saved: how many tensors the node has saved.
        gradients: how many gradients it gets, None among them.
        others: how many sizes, opaque objects and backward states it has.
    """
    metadata = forward.metadata
    if metadata.unknown:
        return f"not known to this memprof: {', '.join(metadata.unknown)}"
    (output,) = module.graph.find_nodes(op="output")
    taken = len(metadata.tangents)
    counts = {
        "saved tensors": (len(forward.saved_tensors), saved),
        "values with a gradient": (metadata.num_forward_returns, gradients),
        "layouts of gradients": (len(metadata.subclass_tangent_meta), taken),
        "inputs": (saved + taken + others, len(module.graph.find_nodes(op="placeholder"))),
        "gradients that it returns": (len(metadata.input_info), len(output.args[0])),
    }
    differ = (f"{n} {what} and not {m}" for what, (n, m) in counts.items() if n != m)
    return next(differ, "")


def _needs_torch(function: Any, metadata: ViewAndMutationMeta) -> bool:
    """Tells whether torch's own prologue and epilogue have something to do for a backward that a
    description does not say."""
    return bool(
        _torch_compat.has_subclasses(function)
        or None in metadata.subclass_tangent_meta
        or metadata.is_rng_op_functionalized
        or metadata.num_graphsafe_rng_states
        or metadata.num_backward_tokens
        or metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
    )


def _in_layouts(function: Any, metadata: ViewAndMutationMeta) -> Callable[..., Any]:
    """``(gradients that the graph takes) -> the same, in the layouts that it was compiled for``;
    torch's prologue has what is no plain tensor, and what it refuses."""
    prologue, taken = _prologue(function), metadata.tangents
    layouts = [layout for layout in metadata.subclass_tangent_meta if layout is not None]
    in_order = metadata.deterministic is False

    def aot_tangents(grads: Sequence[Any]) -> Any:
        refused = in_order and torch.are_deterministic_algorithms_enabled()
        if refused or any(map(_torch_compat.is_subclass, grads)):
            every = [None] * metadata.num_forward_returns
            for i, gradient in zip(taken, grads, strict=True):
                every[i] = gradient
            return prologue([], [], [], every)
        return _torch_compat.in_layouts(grads, layouts)

    return _torch_compat.allow_in_graph(aot_tangents)


def _mark_saved(saved: Sequence[Any], aot_id: int, forward: GraphDescription) -> None:
    """Note on saved tensors which outputs of the forward they are, and which parameters."""
    for node, output in zip(saved, forward.saved_tensors, strict=True):
        node.meta.setdefault(SAVED_AS, (aot_id, output))
        if output.alias_of_input is not None:
            of = forward.inputs[output.alias_of_input]
            if of.role in (Role.PARAMETER, Role.BUFFER):
                node.meta.setdefault(TENSOR_NAME, of.label)


def _named(forward: GraphDescription, outputs: Sequence[Any]) -> list[Node | None]:
    """Gradients of the forward's inputs, with the names of these; None for an input that needs no
    gradient."""
    names = {v.info: v.label for v in forward.inputs}
    found: list[Node | None] = []
    for i, info in enumerate(forward.metadata.input_info):
        gradient = outputs[i] if info.requires_grad else None
        found.append(gradient if isinstance(gradient, Node) else None)
        if isinstance(gradient, Node):
            gradient.meta[GRADIENT_OF] = names.get(i)
    return found


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

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

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from . import _torch_compat
from ._torch_capture import AotBackward, aot_symints, subclass_maker
from .errors import CaptureError
from .node_meta import ORIGIN, VALUE, of_tensor
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
            CaptureError: the backward graph was not kept, or grad mode is on.
        """
        tracer = self._tracer
        try:
            backward = AotBackward(ctx._forward_cls)
        except LookupError as error:
            raise CaptureError(
                f"the compiled backward came from AOTAutograd's cache, which keeps no graph to "
                f"inline ({error}); compile the forward inside `enable()`, or with "
                f"torch._functorch.config.enable_autograd_cache = False"
            ) from error
        if torch.is_grad_enabled() and backward.may_need_double_backward:
            raise CaptureError("a torch.compile'd function cannot be differentiated twice")
        symints = [tracer.lift(s) for s in aot_symints(ctx)]
        saved = tracer.lift(list(saved_tensors))
        objects = [tracer.item("hooks", i) for i in opaque_objects]
        prologue = tracer.call(
            backward.prologue(), (saved, symints, objects, tracer.lift(list(grads)))
        )
        # What the graph's placeholders are: sizes, saved tensors and gradients, hooks.
        count = len(backward.module.graph.find_nodes(op="placeholder"))
        handed = range(len(symints), count - (backward_state is not None))
        arguments = symints + [tracer.part(prologue, i) for i in handed]
        if backward_state is not None:
            arguments.append(tracer.item("hooks", backward_state))
        return self._epilogue(backward, self._copy(backward, arguments))

    def _copy(self, backward: AotBackward, arguments: list[Any]) -> list[Any]:
        """Copy the graph; its outputs as nodes or constants."""
        tracer = self._tracer
        # ``mm_3`` of graph 1 becomes ``aot1_mm_3``, so that both graphs can be read together, and
        # ``aot1_1_mm_3`` where the graph is called again in one backward.
        nth = self._times[backward.id]
        self._times[backward.id] += 1
        prefix = f"aot{backward.id}_{nth}_" if nth else f"aot{backward.id}_"
        base = tracer.origin
        assert base is not None
        copies: dict[Node, Any] = {}
        remaining = iter(arguments)

        for node in backward.module.graph.nodes:
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
                    target = self._adopt(backward.module, str(target))
                elif target is torch.ops.aten.view.default:
                    # The forward was compiled with its views turned into reshapes, so a
                    # gradient may have strides that no view can take.
                    target = torch.ops.aten.reshape.default
                args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
                copy = tracer.graph.create_node(node.op, target, args, kwargs)
                copy.meta["stack_trace"] = base.stack_trace
                copy.meta |= {key: node.meta[key] for key in _KEPT_META if key in node.meta}
                copy.meta[ORIGIN] = replace(base, aot_id=backward.id, aot_node=node.name)
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

    def _adopt(self, module: torch.fx.GraphModule, name: str) -> str:
        """Take an attribute of AOTAutograd's module over; its name here."""
        new = "aot_" + name.replace(".", "_")
        while hasattr(self._tracer.root, new):
            new += "_"
        setattr(self._tracer.root, new, operator.attrgetter(name)(module))
        return new

    def _epilogue(self, backward: AotBackward, outputs: list[Any]) -> list[Node | None]:
        tracer = self._tracer
        values = [tracer.new_value(o) if isinstance(o, Node) else o for o in outputs]

        def make_subclass(metadata: Any, is_runtime: bool, parts: Sequence[Any]) -> torch.Tensor:
            function = subclass_maker(metadata, is_runtime)
            return tracer.new_value(tracer.call(function, tracer.lift(tuple(parts))))

        results = backward.epilogue(values, make_subclass)
        lifted = [tracer.lift(r) for r in results]
        return [node if isinstance(node, Node) else None for node in lifted]

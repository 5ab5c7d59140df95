"""The inputs and outputs of a compiled graph: what each is, and what its memory is for.

Decided from AOTAutograd's descriptors and metadata and from Dynamo's sources, never from
names; see Note [How a category is decided] in profiler/model/category.py.

Note [Values whose memory is older]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``GraphValue.category`` is that of memory *first seen* as this value. Where AOTAutograd
says that an output is an input's memory (an output that is or views an input, a parameter
saved for the backward), output and input agree in category, and ``alias_of_input`` says
why. ``MUTATED_INPUT`` outputs are different: the new value of a mutated input is memory of
its own, which AOTAutograd copies into the input and releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from memprof.compile_backend import _torch_compat as compat
from memprof.profiler.model import Category, GraphKind, GraphValue, Role

from .descriptor import Descriptor, DescriptorKind
from .dynamo_input import DynamoInput, DynamoOutput
from .from_aot import descriptor
from .graph_signature import backward_signature, forward_signature
from .graph_value import (
    UNKNOWN,
    Fact,
    absent_value,
    fact_by_value,
    graph_value,
    has_memory,
    is_rng,
    user_frame,
)
from .signature import BackwardSignature, GraphSignature
from .view_and_mutation import ViewAndMutationMeta


@dataclass(frozen=True)
class ForwardDescription:
    """What the backward needs to know of its forward.

    Attributes:
        inputs, outputs: of the forward graph.
        by_descriptor: index of the input with each descriptor text.
    """

    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    by_descriptor: tuple[tuple[str, int], ...]

    def input_described(self, desc: Descriptor | None) -> GraphValue | None:
        """The forward input that ``desc`` describes."""
        if desc is None:
            return None
        index = self._index_of.get(desc.text)
        return None if index is None else self.inputs[index]

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return dict(self.by_descriptor)


@dataclass(frozen=True)
class GraphIO:
    """Inputs and outputs of one graph.

    Attributes:
        inputs, outputs: by position. An output that the graph returns None for has the
            name "" and the role UNKNOWN.
        input_descriptors, output_descriptors: AOTAutograd's, None where it has none.
        signature: of a forward or inference graph.
        backward_signature: of a backward graph.
    """

    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    input_descriptors: tuple[Descriptor | None, ...] = ()
    output_descriptors: tuple[Descriptor | None, ...] = ()
    signature: GraphSignature | None = None
    backward_signature: BackwardSignature | None = None

    def as_forward(self) -> ForwardDescription:
        """What to hand to ``describe_graph`` for the backward of this graph."""
        return ForwardDescription(
            self.inputs,
            self.outputs,
            tuple((d.text, i) for i, d in enumerate(self.input_descriptors) if d is not None),
        )


def undescribed(gm: torch.fx.GraphModule) -> GraphIO:
    """As many inputs and outputs as the graph has, of which nothing is known."""
    nodes = list(gm.graph.nodes)
    outputs = nodes[-1].args[0]
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    return GraphIO(
        tuple(
            GraphValue(i, node.name, Role.UNKNOWN, Category.UNKNOWN)
            for i, node in enumerate(n for n in nodes if n.op == "placeholder")
        ),
        tuple(absent_value(i) for i in range(count)),
    )


def describe_graph(
    gm: torch.fx.GraphModule,
    *,
    kind: GraphKind,
    fw_metadata: ViewAndMutationMeta | None,
    dynamo_inputs: tuple[DynamoInput, ...] | None,
    static_input_idxs: Sequence[int],
    forward: ForwardDescription | None = None,
    captured_outputs: Mapping[int, DynamoOutput] | None = None,
) -> GraphIO:
    """Describe a graph that AOTAutograd made, before Inductor rewrites it.

    Args:
        gm: flat graph with AOTAutograd's descriptors in ``meta["desc"]``.
        kind: which part of AOTAutograd's output it is.
        fw_metadata: of the forward it belongs to.
        dynamo_inputs: of the Dynamo graph it comes from; without them the roles of user
            inputs are unknown.
        static_input_idxs: as given to the inner compile.
        forward: of the forward that this backward belongs to.
        captured_outputs: the graph is a captured backward, to AOTAutograd an inference graph:
            what it returns, by position. What is not named is a gradient all the same.
    """
    graph = _Graph(gm, kind, fw_metadata, dynamo_inputs or (), forward, captured_outputs)
    static = frozenset(static_input_idxs)
    inputs = graph.backward_inputs() if kind is GraphKind.BACKWARD else graph.forward_inputs()
    inputs = tuple(replace(v, static=v.index in static) for v in inputs)
    outputs = (
        graph.backward_outputs() if kind is GraphKind.BACKWARD else graph.forward_outputs(inputs)
    )
    io = GraphIO(inputs, outputs, tuple(graph.input_descs), tuple(graph.output_descs))
    if kind is GraphKind.BACKWARD:
        forward_input = forward.input_described if forward is not None else None
        gradients = backward_signature(outputs, io.output_descriptors, forward_input)
        return replace(io, backward_signature=gradients)
    signature = forward_signature(inputs, outputs, io.input_descriptors, io.output_descriptors)
    return replace(io, signature=signature)


_K = DescriptorKind


class _Graph:
    """One graph and what is known about it."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        kind: GraphKind,
        metadata: ViewAndMutationMeta | None,
        dynamo_inputs: tuple[DynamoInput, ...],
        forward: ForwardDescription | None,
        captured_outputs: Mapping[int, DynamoOutput] | None,
    ) -> None:
        self.kind = kind
        self.captured_outputs = captured_outputs
        self.metadata = metadata
        self.forward = forward
        self.by_index = {d.index: d for d in dynamo_inputs if d.index is not None}
        self.by_name = {d.name: d for d in dynamo_inputs if d.index is None}
        self.placeholders: list[torch.fx.Node] = gm.graph.find_nodes(op="placeholder")
        self.input_descs = [descriptor(n.meta.get("desc")) for n in self.placeholders]
        self.position = {node: i for i, node in enumerate(self.placeholders)}
        (output,) = gm.graph.find_nodes(op="output")
        returned = output.args[0] if output.args else ()
        self.results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        self.output_descs = _aligned(output.meta.get("desc"), len(self.results))
        self.stacks = output.meta.get("output_stack_traces") or ()

    # --- forward and inference ------------------------------------------------------------

    def forward_inputs(self) -> tuple[GraphValue, ...]:
        values = [
            graph_value(i, node, self._forward_input(node, desc))
            for i, (node, desc) in enumerate(zip(self.placeholders, self.input_descs, strict=True))
        ]
        for i, desc in enumerate(self.input_descs):
            known = self._known(desc.whole) if desc is not None else None
            if known is not None and known.forward is not None:
                graph, output = known.forward
                values[i] = replace(values[i], forward_graph=graph, forward_output=output)
        traced = self._traced_inputs()
        if traced and self.metadata is not None:
            for info in self.metadata.mutated_graph_handled_indices:
                values[traced[info]] = replace(values[traced[info]], mutated=True)
        return tuple(values)

    def _forward_input(self, node: torch.fx.Node, desc: Descriptor | None) -> Fact:
        if desc is None:
            return fact_by_value(node, Category.INPUT) or UNKNOWN
        if desc.kind is _K.RNG:
            return Role.RNG_STATE, Category.AUTOGRAD_DETAIL, None
        if desc.kind is _K.TOKEN:
            return Role.TOKEN, Category.AUTOGRAD_DETAIL, None
        role, category, fqn = self._user_value(desc)
        by_value = fact_by_value(node, category)
        return (*by_value[0:2], fqn) if by_value is not None else (role, category, fqn)

    def _user_value(self, desc: Descriptor) -> Fact:
        """Role, category and name of a value of the user's function, parts of it included."""
        whole = desc.whole
        while whole.kind in (_K.VIEW_BASE, _K.SYNTHETIC_BASE) and whole.of is not None:
            whole = whole.of.whole
        known = self._known(whole)
        if known is None:
            return UNKNOWN
        role, category = _role_of(known)
        name = known.fqn or known.source or None
        path = desc.attribute_path
        return role, category, ".".join((name, *path)) if name and path else name

    def _known(self, whole: Descriptor) -> DynamoInput | None:
        """Dynamo's description of an input."""
        if whole.kind is _K.PLAIN_INPUT and whole.index is not None:
            return self.by_index.get(whole.index)
        if whole.kind in (_K.PARAMETER, _K.BUFFER) and whole.target is not None:
            return self.by_name.get(whole.target) or DynamoInput(
                whole.target,
                is_parameter=whole.kind is _K.PARAMETER,
                is_buffer=whole.kind is _K.BUFFER,
                fqn=whole.target,
            )
        return None

    def _traced_inputs(self) -> list[int]:
        """Position of the graph input for each ``input_info``.

        Empty where graph and metadata do not fit: freezing takes parameters out of the
        graph after the metadata was collected.
        """
        if self.metadata is None or not self.metadata.knows("input_info"):
            return []
        traced = [
            i
            for i, (node, desc) in enumerate(zip(self.placeholders, self.input_descs, strict=True))
            if not is_rng(node, desc) and (desc is None or desc.kind is not _K.TOKEN)
        ]
        return traced if len(traced) == len(self.metadata.input_info) else []

    def forward_outputs(self, inputs: tuple[GraphValue, ...]) -> tuple[GraphValue, ...]:
        saved = self._saved_positions()
        kept = {self.results[i] for i in saved if isinstance(self.results[i], torch.fx.Node)}
        tokens = sum(d is not None and d.kind is _K.TOKEN for d in self.output_descs)
        traced = self._traced_inputs()
        values = []
        for at, (node, desc) in enumerate(zip(self.results, self.output_descs, strict=True)):
            if not isinstance(node, torch.fx.Node):
                values.append(absent_value(at))
                continue
            if at in saved:
                role, category = Role.SAVED_FOR_BACKWARD, Category.ACTIVATION
                fact = fact_by_value(node, Category.AUTOGRAD_DETAIL) or (role, category, None)
                alias = self.position.get(node)
            else:
                fact, alias = self._forward_output(at - tokens, node, desc, traced)
                if node in kept and fact[1] is Category.OUTPUT and has_memory(node):
                    fact = (fact[0], Category.ACTIVATION, fact[2])
            alias = alias if has_memory(node) else None
            if alias is not None:
                fact = (fact[0], inputs[alias].category, inputs[alias].fqn)
            value = graph_value(at, node, fact, self._frame(at, node))
            values.append(replace(value, alias_of_input=alias))
        return tuple(values)

    def _forward_output(
        self, at: int, node: torch.fx.Node, desc: Descriptor | None, traced: list[int]
    ) -> tuple[Fact, int | None]:
        """Facts of the output at position ``at``, tokens not counted, and its alias."""
        kind = desc.whole.kind if desc is not None else None
        if kind is _K.TOKEN:
            return (Role.TOKEN, Category.AUTOGRAD_DETAIL, None), None
        if kind is _K.RNG:
            return (Role.RNG_STATE, Category.AUTOGRAD_DETAIL, None), None
        by_value = fact_by_value(node, Category.OUTPUT)
        if by_value is not None:
            return by_value, None
        if kind in (_K.INPUT_MUTATION, _K.METADATA_MUTATION):
            mutated = desc.whole.of if desc is not None else None
            fqn = self._user_value(mutated)[2] if mutated is not None else None
            return (Role.MUTATED_INPUT, Category.OUTPUT, fqn), None
        if kind is _K.INTERMEDIATE_BASE:
            return (Role.INTERMEDIATE_BASE, Category.OUTPUT, None), None
        if self.captured_outputs is not None:
            return self._captured_output(desc), self._alias(at, node, traced)
        return (Role.USER_OUTPUT, Category.OUTPUT, None), self._alias(at, node, traced)

    def _captured_output(self, desc: Descriptor | None) -> Fact:
        whole = desc.whole if desc is not None else None
        known = None
        if whole is not None and whole.kind is _K.PLAIN_OUTPUT and whole.index is not None:
            known = (self.captured_outputs or {}).get(whole.index)
        if known is not None and known.is_parameter_gradient:
            return Role.PARAMETER_GRADIENT, Category.GRADIENT, known.fqn
        return Role.INPUT_GRADIENT, Category.AUTOGRAD_DETAIL, known.fqn if known else None

    def _alias(self, at: int, node: torch.fx.Node, traced: list[int]) -> int | None:
        """The graph input whose memory user output ``at`` is, by AOTAutograd's analysis."""
        if self.metadata is not None and self.metadata.knows("input_info", "output_info"):
            number = at - self.metadata.num_mutated_inp_runtime_indices
            if 0 <= number < self.metadata.num_outputs:
                info = self.metadata.output_info[number]
                if info.output_type.aliases_input and info.base_idx is not None:
                    return traced[info.base_idx] if info.base_idx < len(traced) else None
        return self.position.get(node)

    def _saved_positions(self) -> frozenset[int]:
        """Outputs that are there for the backward."""
        if self.kind is not GraphKind.FORWARD:
            return frozenset()
        meta, count = self.metadata, len(self.results)
        if meta is None or not meta.is_partitioned:
            saved = (_K.SAVED_FOR_BACKWARD, _K.SAVED_FOR_BACKWARD_NO_VC_CHECK)
            return frozenset(
                i for i, d in enumerate(self.output_descs) if d is not None and d.kind in saved
            )
        every = range(count)
        return frozenset(
            (
                *every[meta.tensors_saved_for_backwards_slice],
                *every[meta.opaque_objects_saved_for_backwards_slice],
                *every[meta.symints_saved_for_backwards_slice],
            )
        )

    # --- backward -------------------------------------------------------------------------

    def backward_inputs(self) -> tuple[GraphValue, ...]:
        saved = self._saved_as_forward_outputs()
        values = []
        for at, (node, desc) in enumerate(zip(self.placeholders, self.input_descs, strict=True)):
            if at >= len(saved):
                values.append(graph_value(at, node, self._backward_extra(node, desc)))
                continue
            output = saved[at]
            value = graph_value(at, node, self._saved_value(node, desc, output))
            values.append(replace(value, forward_output=output))
        return tuple(values)

    def _saved_as_forward_outputs(self) -> list[int | None]:
        """For each leading input that the forward saved, the forward output it is.

        Inputs come as symints, tensors, opaque objects; forward outputs as tensors,
        opaque objects, symints.
        """
        count = 0
        for node, desc in zip(self.placeholders, self.input_descs, strict=True):
            kind = desc.whole.kind if desc is not None else None
            is_state = compat.is_backward_state(node.meta.get("val"))
            if kind in (_K.TANGENT, _K.TOKEN) or is_rng(node, desc) or is_state:
                break
            count += 1
        if self.metadata is None or not self.metadata.is_partitioned:
            return [self._forward_output_named(n.name) for n in self.placeholders[:count]]
        symints = self.metadata.num_symints_saved_for_bw or 0
        opaque = self.metadata.num_opaque_objects_saved_for_bw or 0
        first = self.metadata.num_forward
        others = count - symints
        if self.forward is not None:
            # Counted from the end, as the metadata's slices are: tokens may come first.
            first = len(self.forward.outputs) - symints - others
        order = [first + others + i for i in range(symints)]
        order += [first + i for i in range(others - opaque)]
        order += [first + others - opaque + i for i in range(opaque)]
        return list(order)

    def _forward_output_named(self, name: str) -> int | None:
        """Without metadata: partitioning keeps a node's name on both sides."""
        outputs = self.forward.outputs if self.forward is not None else ()
        return next((v.index for v in reversed(outputs) if v.name == name), None)

    def _saved_value(
        self, node: torch.fx.Node, desc: Descriptor | None, output: int | None
    ) -> Fact:
        origin: GraphValue | None = None
        if self.forward is not None:
            origin = self.forward.input_described(desc)
            if origin is None and output is not None and output < len(self.forward.outputs):
                alias = self.forward.outputs[output].alias_of_input
                origin = None if alias is None else self.forward.inputs[alias]
        if origin is not None:
            return origin.role, origin.category, origin.fqn
        by_value = fact_by_value(node, Category.AUTOGRAD_DETAIL)
        if by_value is not None:
            return by_value
        if desc is not None:  # a forward input, but nothing describes the forward
            return self._user_value(desc)
        return Role.SAVED_FOR_BACKWARD, Category.ACTIVATION, None

    def _backward_extra(self, node: torch.fx.Node, desc: Descriptor | None) -> Fact:
        """An input of the backward that the forward did not save."""
        detail = Category.AUTOGRAD_DETAIL
        if desc is None:
            return fact_by_value(node, detail) or UNKNOWN
        kind = desc.whole.kind
        if kind is _K.RNG:
            return Role.RNG_STATE, detail, None
        if kind is _K.TOKEN:
            return Role.TOKEN, detail, None
        by_value = fact_by_value(node, detail)
        if by_value is not None:
            return by_value
        return (Role.TANGENT, detail, None) if kind is _K.TANGENT else self._user_value(desc)

    def backward_outputs(self) -> tuple[GraphValue, ...]:
        values = []
        for at, (node, desc) in enumerate(zip(self.results, self.output_descs, strict=True)):
            if not isinstance(node, torch.fx.Node):
                values.append(absent_value(at))
                continue
            value = graph_value(at, node, self._backward_output(node, desc), self._frame(at, node))
            alias = self.position.get(node) if has_memory(node) else None
            values.append(replace(value, alias_of_input=alias))
        return tuple(values)

    def _backward_output(self, node: torch.fx.Node, desc: Descriptor | None) -> Fact:
        detail = Category.AUTOGRAD_DETAIL
        kind = desc.whole.kind if desc is not None else None
        if kind is _K.RNG:
            return Role.RNG_STATE, detail, None
        if kind is _K.TOKEN:
            return Role.TOKEN, detail, None
        by_value = fact_by_value(node, detail)
        if by_value is not None:
            return by_value
        of = desc.whole.of if desc is not None else None
        if of is None or desc is None:
            return UNKNOWN
        owner = self.forward.input_described(of) if self.forward is not None else None
        fqn: str | None
        if owner is not None:
            role, fqn = owner.role, owner.fqn
        else:
            role, _, fqn = self._user_value(of)
        if kind is _K.INPUT_MUTATION:
            return Role.MUTATED_INPUT, Category.OUTPUT, fqn
        if kind is not _K.GRADIENT:
            return UNKNOWN
        fqn = ".".join((fqn, *desc.attribute_path)) if fqn else None
        if role is Role.PARAMETER:
            return Role.PARAMETER_GRADIENT, Category.GRADIENT, fqn
        return Role.INPUT_GRADIENT, detail, fqn

    def _frame(self, at: int, node: torch.fx.Node) -> str | None:
        stack = self.stacks[at] if at < len(self.stacks) else None
        return user_frame(stack or node.meta.get("stack_trace"))


def _aligned(descs: object, count: int) -> list[Descriptor | None]:
    """Descriptors of ``count`` outputs.

    Where AOTAutograd has taken effect tokens out of the outputs again, as it does for
    Inductor, it leaves their descriptors in.
    """
    known = [descriptor(d) for d in descs] if isinstance(descs, (list, tuple)) else []
    if len(known) > count:
        known = [d for d in known if d is None or d.kind is not _K.TOKEN]
    return known if len(known) == count else [None] * count


def _role_of(known: DynamoInput) -> tuple[Role, Category]:
    if known.is_parameter:
        return Role.PARAMETER, Category.PARAMETER
    if known.is_buffer:
        return Role.BUFFER, Category.PARAMETER
    if known.is_optimizer_state:
        return Role.OPTIMIZER_STATE, Category.OPTIMIZER_STATE
    if known.is_parameter_gradient:
        return Role.PARAMETER_GRADIENT, Category.GRADIENT
    if known.is_saved_for_backward:
        return Role.SAVED_FOR_BACKWARD, Category.ACTIVATION
    if known.is_input_gradient:
        return Role.INPUT_GRADIENT, Category.AUTOGRAD_DETAIL
    if known.is_backward_root:
        return Role.TANGENT, Category.AUTOGRAD_DETAIL
    return Role.USER_INPUT, Category.INPUT

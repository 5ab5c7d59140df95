"""The description of a compiled graph: what each input and output is, and what its memory is for.

Decided from AOTAutograd's descriptors and metadata and from Dynamo's sources, never from
names; see Note [How a category is decided] in profiler/model/category.py.

Note [Values whose memory is older]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``GraphValue.category`` is that of memory *first seen* as this value. Where AOTAutograd
says that an output is an input's memory (one that is or views an input, a parameter saved), both
agree in category, and ``alias_of_input`` says why. Not so ``MUTATED_INPUT`` outputs: the new value
is memory of its own, which AOTAutograd copies into the input and releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from memprof.profiler.live.stack_text import parse_stack_trace
from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphKind,
    GraphValue,
    MutationType,
    Role,
    ViewAndMutationMeta,
)

from . import _torch_compat as compat
from .aot_metadata import Descriptor, DescriptorKind as _K, descriptor
from .dynamo_input import CATEGORIES, DynamoInput
from .graph_value import (
    DETAIL,
    UNKNOWN,
    RoleInfo,
    absent_value,
    graph_value,
    has_memory,
    is_rng,
    without_memory,
)


@dataclass(frozen=True)
class GraphIO:
    """Description of one graph, and what its backward needs to know beside it.

    Attributes:
        by_descriptor: index of the input with each descriptor text.
        by_input, by_output: index of the tensor with each text, and path in a tensor subclass.
    """

    description: GraphDescription = field(default_factory=GraphDescription)
    by_descriptor: Mapping[str, int] = field(default_factory=dict)
    by_input: Mapping[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    by_output: Mapping[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[GraphValue, ...]:
        """Inputs of the graph, by position."""
        return self.description.inputs

    @property
    def outputs(self) -> tuple[GraphValue, ...]:
        """Outputs of the graph, by position."""
        return self.description.outputs

    def input_described(self, desc: Descriptor) -> GraphValue | None:
        """The input that ``desc`` describes."""
        index = self.by_descriptor.get(desc.text)
        return None if index is None else self.inputs[index]

    def output_of_tangent(self, desc: Descriptor) -> int | None:
        """The output whose gradient the tangent is that ``desc`` describes."""
        if desc.whole.kind is not _K.TANGENT or desc.whole.of is None:
            return None
        return self.by_output.get((desc.whole.of.text, desc.attribute_path))


def undescribed(gm: torch.fx.GraphModule, why: str) -> GraphDescription:
    """Description of a graph of which only the number of inputs and outputs is known."""
    nodes = list(gm.graph.nodes)
    outputs = nodes[-1].args[0]
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    inputs = (n for n in nodes if n.op == "placeholder")
    return GraphDescription(
        tuple(
            GraphValue(i, node.name, UNKNOWN.role, UNKNOWN.category)
            for i, node in enumerate(inputs)
        ),
        tuple(map(absent_value, range(count))),
        unreadable=why,
    )


def describe_graph(
    gm: torch.fx.GraphModule,
    *,
    kind: GraphKind,
    fw_metadata: ViewAndMutationMeta,
    dynamo_inputs: Sequence[DynamoInput],
    forward: GraphIO | None = None,
    captured_outputs: Mapping[int, RoleInfo] | None = None,
) -> GraphIO:
    """Describe a graph that AOTAutograd made, before Inductor rewrites it.

    Args:
        gm: flat graph with AOTAutograd's descriptors in ``meta["desc"]``.
        fw_metadata: of the forward it belongs to.
        dynamo_inputs: of the Dynamo graph it comes from; without them the roles of user
            inputs are unknown.
        forward: of the forward that this backward belongs to.
        captured_outputs: the graph is a captured backward, to AOTAutograd an inference graph:
            what it returns, by position. What is not named is a gradient all the same.
    """
    graph = _Graph(gm, kind, fw_metadata, dynamo_inputs, forward or GraphIO(), captured_outputs)
    backward = kind is GraphKind.BACKWARD
    inputs = tuple(graph.backward_inputs() if backward else graph.forward_inputs())
    outputs = graph.backward_outputs() if backward else graph.forward_outputs(inputs)
    descriptors = {d.text: i for i, (_, d) in enumerate(graph.inputs) if d.text}
    by_input, by_output = (
        {
            (d.whole.text, d.attribute_path): i
            for i, (node, d) in enumerate(values)
            if d.text and isinstance(node, Node) and has_memory(node)
        }
        for values in (graph.inputs, graph.outputs)
    )
    own = ViewAndMutationMeta(unknown=fw_metadata.unknown) if backward else fw_metadata
    return GraphIO(GraphDescription(inputs, outputs, own), descriptors, by_input, by_output)


class _Graph:
    """One graph and what is known about it.

    Attributes:
        inputs, outputs: nodes with their descriptors; an output may be None.
        traced: position of the graph input for each ``input_info`` of a forward.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        kind: GraphKind,
        metadata: ViewAndMutationMeta,
        dynamo_inputs: Sequence[DynamoInput],
        forward: GraphIO,
        captured_outputs: Mapping[int, RoleInfo] | None,
    ) -> None:
        self.kind = kind
        self.metadata = metadata
        self.forward = forward
        self.captured_outputs = captured_outputs
        self.by_index: dict[int | None, DynamoInput] = {
            d.index: d for d in dynamo_inputs if d.index is not None
        }
        self.by_name = {d.name: d for d in dynamo_inputs if d.index is None}
        placeholders: list[Node] = gm.graph.find_nodes(op="placeholder")
        self.inputs = [(n, descriptor(n.meta.get("desc"))) for n in placeholders]
        self.position = {node: i for i, node in enumerate(placeholders)}
        (output,) = gm.graph.find_nodes(op="output")
        returned = output.args[0] if output.args else ()
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        self.outputs = list(
            zip(results, _aligned(output.meta.get("desc"), len(results)), strict=True)
        )
        self.stacks = output.meta.get("output_stack_traces") or ()
        self.traced: list[int] = []
        if kind is not GraphKind.BACKWARD and metadata.knows("input_info"):
            traced = [
                i
                for i, (n, d) in enumerate(self.inputs)
                if not is_rng(n, d) and d.kind is not _K.TOKEN
            ]
            # Freezing takes parameters out of the graph after the metadata was collected.
            if len(traced) == len(metadata.input_info):
                self.traced = traced

    # --- forward and inference ------------------------------------------------------------

    def written(self, how: MutationType) -> set[int]:
        """Indices of a forward's inputs that are written to in this way."""
        infos = self.metadata.input_info
        return {i for i, m in zip(self.traced, infos, strict=False) if m.mutation_type is how}

    def forward_inputs(self) -> list[GraphValue]:
        written = self.written(MutationType.MUTATED_IN_GRAPH)
        # AOTAutograd writes to these for it.
        after = self.written(MutationType.MUTATED_OUT_GRAPH)
        static = set(self.metadata.static_input_indices)
        infos = {at: i for i, at in enumerate(self.traced)}
        values = []
        for i, (node, desc) in enumerate(self.inputs):
            known = self._dynamo_input(desc.whole)
            graph, output = (known.forward if known is not None else None) or (None, None)
            value = graph_value(
                i,
                node,
                self._forward_input(node, desc),
                static=infos.get(i) in static,
                mutated=i in written,
                forward_graph=graph,
                forward_output=output,
                info=infos.get(i),
            )
            values.append(_as_state(value, written=i in after))
        return values

    def _forward_input(self, node: Node, desc: Descriptor) -> RoleInfo:
        if desc.kind in (_K.NONE, _K.RNG, _K.TOKEN):
            return without_memory(node, desc, Category.INPUT) or UNKNOWN
        info = self._user_value(desc)
        other = without_memory(node, desc, info.category)
        return info if other is None else other._replace(fqn=info.fqn)

    def _user_value(self, desc: Descriptor) -> RoleInfo:
        """Role and name of a value of the user's function, or of a part of one."""
        whole = desc.whole
        while whole.kind in (_K.VIEW_BASE, _K.SYNTHETIC_BASE) and whole.of is not None:
            whole = whole.of.whole
        known = self._dynamo_input(whole)
        if known is None:
            return UNKNOWN
        part = None
        if desc.attribute_path:
            part = f"{known.subclass} {'.'.join(desc.attribute_path).lstrip('_')}".lstrip()
        name = known.fqn or known.source or None
        return RoleInfo(known.role, CATEGORIES[known.role], name, part)

    def _dynamo_input(self, whole: Descriptor) -> DynamoInput | None:
        """Dynamo's description of an input."""
        if whole.kind is _K.PLAIN_INPUT:
            return self.by_index.get(whole.index)
        if whole.kind in (_K.PARAMETER, _K.BUFFER) and whole.target is not None:
            role = Role.PARAMETER if whole.kind is _K.PARAMETER else Role.BUFFER
            named = DynamoInput(whole.target, role=role, fqn=whole.target)
            return self.by_name.get(whole.target, named)
        return None

    def forward_outputs(self, inputs: Sequence[GraphValue]) -> tuple[GraphValue, ...]:
        saved = self._saved_positions()
        kept = {self.outputs[i][0] for i in saved}
        tokens = sum(d.kind is _K.TOKEN for _, d in self.outputs)
        values = []
        for at, (node, desc) in enumerate(self.outputs):
            if not isinstance(node, Node):
                values.append(absent_value(at))
                continue
            alias = number = None
            if at in saved:
                kept_for = (
                    Category.CHECKPOINTED_INPUT if enters_region(node) else Category.ACTIVATION
                )
                activation = RoleInfo(Role.SAVED_FOR_BACKWARD, kept_for)
                info = without_memory(node, desc, DETAIL) or activation
                alias = self.position.get(node)
            else:
                info = self._forward_output(node, desc)
                number = self._user_output(at - tokens)
                if node in kept and info.category is Category.OUTPUT and has_memory(node):
                    info = info._replace(category=Category.ACTIVATION)
                if info.role in (Role.USER_OUTPUT, Role.PARAMETER_GRADIENT, Role.INPUT_GRADIENT):
                    alias = self._alias(number, node)
            if alias is not None and has_memory(node):
                of = inputs[alias]
                info = RoleInfo(info.role, of.category, of.fqn, of.part)
            values.append(self._output(at, node, info, alias, info=number))
        return tuple(values)

    def _forward_output(self, node: Node, desc: Descriptor) -> RoleInfo:
        other = without_memory(node, desc, Category.OUTPUT)
        if other is not None:
            return other
        whole = desc.whole
        if whole.kind is _K.INPUT_MUTATION:
            fqn = self._user_value(whole.of).fqn if whole.of is not None else None
            return RoleInfo(Role.MUTATED_INPUT, Category.OUTPUT, fqn)
        if whole.kind is _K.INTERMEDIATE_BASE:
            return RoleInfo(Role.INTERMEDIATE_BASE, Category.OUTPUT)
        if self.captured_outputs is None:
            return RoleInfo(Role.USER_OUTPUT, Category.OUTPUT)
        gradient = RoleInfo(Role.INPUT_GRADIENT, DETAIL)
        if whole.kind is not _K.PLAIN_OUTPUT or whole.index is None:
            return gradient
        return self.captured_outputs.get(whole.index, gradient)

    def _user_output(self, at: int) -> int | None:
        """Number among the user outputs of the output at ``at``, tokens not counted."""
        if not self.metadata.knows("input_info", "output_info"):
            return None
        number = at - self.metadata.num_mutated_outputs
        return number if 0 <= number < len(self.metadata.output_info) else None

    def _alias(self, number: int | None, node: Node) -> int | None:
        """The graph input whose memory user output ``number`` is, by AOTAutograd's analysis."""
        if number is not None:
            aliased = self.metadata.output_info[number].aliased_input
            if aliased is not None:
                return self.traced[aliased] if aliased < len(self.traced) else None
        return self.position.get(node)

    def _saved_positions(self) -> set[int]:
        """Outputs that are there for the backward."""
        if self.kind is not GraphKind.FORWARD:
            return set()
        if self.metadata.is_partitioned:
            return set().union(*self.metadata.saved_positions(len(self.outputs)))
        return {i for i, (_, d) in enumerate(self.outputs) if d.kind is _K.SAVED_FOR_BACKWARD}

    # --- backward -------------------------------------------------------------------------

    def backward_inputs(self) -> list[GraphValue]:
        saved = self._saved_as_forward_outputs()
        donated = self.metadata.bw_donated_idxs or ()
        written = self._written_to()
        values = []
        for at, (node, desc) in enumerate(self.inputs):
            if at >= len(saved):
                info, of = self._backward_extra(node, desc), self.forward.output_of_tangent(desc)
                values.append(graph_value(at, node, info, mutated=at in written, gradient_of=of))
                continue
            value = graph_value(
                at,
                node,
                self._saved_value(node, desc, saved[at]),
                static=True,
                mutated=at in written,
                donated=at in donated,
                forward_output=saved[at],
            )
            values.append(value)
        return values

    def _written_to(self) -> set[int]:
        """Indices of a backward's inputs that an operator of it writes to: the metadata is that of
        the forward."""
        found = set()
        for node in self.position:
            for user in node.users:
                found |= {self.position[n] for n in compat.written_by(user) if n in self.position}
        return found

    def _saved_as_forward_outputs(self) -> list[int | None]:
        """Index of the forward's output that each leading, saved input is, None if unknown; the
        order of both stands in ``aot_metadata``."""
        count = 0
        for node, desc in self.inputs:
            is_state = compat.is_backward_state(node.meta.get("val"))
            if desc.whole.kind in (_K.TANGENT, _K.TOKEN) or is_rng(node, desc) or is_state:
                break
            count += 1
        outputs = self.forward.outputs
        if not self.metadata.is_partitioned:
            # Partitioning keeps a node's name on both sides.
            index = {v.name: v.index for v in outputs}
            return [index.get(node.name) for node, _ in self.inputs[:count]]
        # Counted from the end of the forward's outputs: tokens may come first.
        end = len(outputs) or self.metadata.num_forward + count
        symints = self.metadata.num_symints_saved_for_bw or 0
        return [*range(end - symints, end), *range(end - count, end - symints)]

    def _saved_value(self, node: Node, desc: Descriptor, output: int | None) -> RoleInfo:
        made = None
        if output is not None and output < len(self.forward.outputs):
            made = self.forward.outputs[output]
        origin = self.forward.input_described(desc)
        if origin is None and made is not None and made.alias_of_input is not None:
            origin = self.forward.inputs[made.alias_of_input]
        if origin is not None:
            return RoleInfo(origin.role, origin.category, origin.fqn, origin.part)
        other = without_memory(node, desc, DETAIL)
        if other is not None:
            return other
        if desc.kind is not _K.NONE:  # a forward input, but nothing describes the forward
            return self._user_value(desc)
        entered = made is not None and made.category is Category.CHECKPOINTED_INPUT
        category = Category.CHECKPOINTED_INPUT if entered else Category.ACTIVATION
        return RoleInfo(Role.SAVED_FOR_BACKWARD, category)

    def _backward_extra(self, node: Node, desc: Descriptor) -> RoleInfo:
        """An input of the backward that the forward did not save."""
        other = without_memory(node, desc, DETAIL)
        if other is not None:
            return other
        is_tangent = desc.whole.kind is _K.TANGENT
        return RoleInfo(Role.TANGENT, DETAIL) if is_tangent else self._user_value(desc)

    def backward_outputs(self) -> tuple[GraphValue, ...]:
        return tuple(
            self._output(
                at,
                node,
                self._backward_output(node, desc),
                self.position.get(node),
                gradient_of=self._input_of_gradient(desc),
            )
            if isinstance(node, Node)
            else absent_value(at)
            for at, (node, desc) in enumerate(self.outputs)
        )

    def _backward_output(self, node: Node, desc: Descriptor) -> RoleInfo:
        other = without_memory(node, desc, DETAIL)
        of = desc.whole.of
        if other is not None or of is None:
            return other or UNKNOWN
        owner = self.forward.input_described(of) or self._user_value(of)
        if desc.whole.kind is _K.INPUT_MUTATION:
            return RoleInfo(Role.MUTATED_INPUT, Category.OUTPUT, owner.fqn)
        if desc.whole.kind is not _K.GRADIENT:
            return UNKNOWN
        at = self._input_of_gradient(desc)
        part = None if at is None else self.forward.inputs[at].part
        if owner.role is Role.PARAMETER:
            return RoleInfo(Role.PARAMETER_GRADIENT, Category.GRADIENT, owner.fqn, part)
        return RoleInfo(Role.INPUT_GRADIENT, DETAIL, owner.fqn, part)

    def _input_of_gradient(self, desc: Descriptor) -> int | None:
        """The forward's input whose gradient ``desc`` describes."""
        whole = desc.whole
        if whole.kind is not _K.GRADIENT or whole.of is None:
            return None
        return self.forward.by_input.get((whole.of.text, desc.attribute_path))

    def _output(
        self, at: int, node: Node, role: RoleInfo, alias: int | None, **fields: int | None
    ) -> GraphValue:
        stack = self.stacks[at] if at < len(self.stacks) else None
        frame = user_frame(stack or node.meta.get("stack_trace"))
        alias = alias if has_memory(node) else None
        return graph_value(at, node, role, frame=frame, alias_of_input=alias, **fields)


def _as_state(value: GraphValue, *, written: bool = False) -> GraphValue:
    """Turn an input that is written to, or ``written`` to for the graph, into persistent state, if
    it is known to stay."""
    if not (written or value.mutated):
        return value
    is_state = value.role is Role.BUFFER or (value.role is Role.USER_INPUT and value.static)
    by_value = value.category in (Category.PARAMETER, Category.INPUT)
    return replace(value, category=Category.PERSISTENT_STATE) if is_state and by_value else value


def enters_region(node: Node) -> bool:
    """Tells whether a value is made outside of a checkpointed region that uses it."""
    own = node.meta.get("ac_graph_id")
    regions = (user.meta.get("ac_graph_id") for user in node.users)
    return any(region is not None and region != own for region in regions)


def _aligned(descs: object, count: int) -> list[Descriptor]:
    """Descriptors of ``count`` outputs. AOTAutograd leaves those of effect tokens in where it has
    taken these out of the outputs again."""
    known = list(map(descriptor, descs)) if isinstance(descs, (list, tuple)) else []
    if len(known) > count:
        known = [d for d in known if d.kind is not _K.TOKEN]
    return known if len(known) == count else [descriptor(None)] * count


_TORCH_FOLDER = torch.__path__[0]


def user_frame(stack: str | None) -> str | None:
    """``file:line`` of the innermost frame outside torch, or of the innermost one at all.

    Args:
        stack: text as ``traceback`` prints it, innermost frame last.
    """
    frames = parse_stack_trace(stack)
    own = [frame for frame in frames if not frame.file.startswith(_TORCH_FOLDER)]
    return next((frame.location for frame in reversed(own or frames)), None)

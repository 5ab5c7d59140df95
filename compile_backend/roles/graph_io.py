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

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace

import torch

from memprof.profiler.model import Category, GraphKind, GraphValue, Role
from memprof.profiler.stack_text import parse_stack_trace

from .. import _torch_compat as compat
from ..aot_metadata import Descriptor, DescriptorKind, ViewAndMutationMeta, descriptor
from .dynamo_input import CATEGORIES, DynamoInput
from .graph_value import (
    UNKNOWN,
    RoleInfo,
    absent_value,
    graph_value,
    has_memory,
    is_rng,
    without_memory,
)

_K = DescriptorKind
_Part = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class GraphIO:
    """Inputs and outputs of one graph; a forward's is what its backward needs to know of it.

    Attributes:
        inputs, outputs: by position. An output that the graph returns None for has the
            name "" and the role UNKNOWN.
        by_descriptor: index of the input with each descriptor text.
        by_output_descriptor: index of the output with each; of parts of a tensor subclass with
            the attributes that lead to them.
    """

    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    by_descriptor: Mapping[str, int] = field(default_factory=dict)
    by_output_descriptor: Mapping[_Part, int] = field(default_factory=dict)

    def input_described(self, desc: Descriptor | None) -> GraphValue | None:
        """The input that ``desc`` describes."""
        index = None if desc is None else self.by_descriptor.get(desc.text)
        return None if index is None else self.inputs[index]

    def output_of_tangent(self, desc: Descriptor | None) -> int | None:
        """The output whose gradient the tangent is that ``desc`` describes."""
        if desc is None or desc.whole.kind is not _K.TANGENT or desc.whole.of is None:
            return None
        return self.by_output_descriptor.get((desc.whole.of.text, desc.attribute_path))


def undescribed(gm: torch.fx.GraphModule, static_input_idxs: Sequence[int]) -> GraphIO:
    """As many inputs and outputs as the graph has, of which nothing else is known."""
    nodes = list(gm.graph.nodes)
    outputs = nodes[-1].args[0]
    count = len(outputs) if isinstance(outputs, (tuple, list)) else 1
    return GraphIO(
        tuple(
            GraphValue(i, node.name, *UNKNOWN, static=i in static_input_idxs)
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
    graph = _Graph(gm, kind, fw_metadata, dynamo_inputs or (), forward, captured_outputs)
    backward = kind is GraphKind.BACKWARD
    inputs = graph.backward_inputs() if backward else graph.forward_inputs()
    inputs = tuple(replace(v, static=v.index in static_input_idxs) for v in inputs)
    metadata = graph.metadata
    if graph.traced and metadata is not None:  # of a forward: it writes, or AOTAutograd for it
        written = {graph.traced[i] for i in metadata.mutated}
        inputs = tuple(_as_state(v) if v.index in written else v for v in inputs)
    outputs = graph.backward_outputs() if backward else graph.forward_outputs(inputs)
    descriptors = {d.text: i for i, d in enumerate(graph.input_descs) if d is not None}
    described = {
        (d.whole.text, d.attribute_path): i
        for i, (d, node) in enumerate(zip(graph.output_descs, graph.results, strict=True))
        if d is not None and isinstance(node, torch.fx.Node) and has_memory(node)
    }
    return GraphIO(inputs, outputs, descriptors, described)


_DETAIL = Category.AUTOGRAD_DETAIL


@dataclass(eq=False, repr=False)
class _Graph:
    """One graph and what is known about it."""

    gm: torch.fx.GraphModule
    kind: GraphKind
    metadata: ViewAndMutationMeta | None
    dynamo_inputs: InitVar[tuple[DynamoInput, ...]]
    forward: GraphIO | None
    captured_outputs: Mapping[int, RoleInfo] | None

    def __post_init__(self, dynamo_inputs: tuple[DynamoInput, ...]) -> None:
        self.by_index = {d.index: d for d in dynamo_inputs if d.index is not None}
        self.by_name = {d.name: d for d in dynamo_inputs if d.index is None}
        graph = self.gm.graph
        self.placeholders: list[torch.fx.Node] = graph.find_nodes(op="placeholder")
        self.input_descs = [descriptor(n.meta.get("desc")) for n in self.placeholders]
        self.position = {node: i for i, node in enumerate(self.placeholders)}
        (output,) = graph.find_nodes(op="output")
        returned = output.args[0] if output.args else ()
        self.results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        self.output_descs = _aligned(output.meta.get("desc"), len(self.results))
        self.stacks = output.meta.get("output_stack_traces") or ()
        self.traced = self._traced_inputs() if self.kind is not GraphKind.BACKWARD else []

    # --- forward and inference ------------------------------------------------------------

    def forward_inputs(self) -> tuple[GraphValue, ...]:
        written: set[int] = set()
        if self.traced and self.metadata is not None:
            written = {self.traced[i] for i in self.metadata.mutated_in_graph}
        values = []
        for i, (node, desc) in enumerate(zip(self.placeholders, self.input_descs, strict=True)):
            known = self._known(desc.whole) if desc is not None else None
            graph, output = (known.forward if known is not None else None) or (None, None)
            links = {"forward_graph": graph, "forward_output": output}
            info = self._forward_input(node, desc)
            values.append(graph_value(i, node, info, mutated=i in written, **links))
        return tuple(values)

    def _forward_input(self, node: torch.fx.Node, desc: Descriptor | None) -> RoleInfo:
        by_value = without_memory(node, desc, Category.INPUT)
        if desc is None or desc.kind in (_K.RNG, _K.TOKEN):
            return by_value or UNKNOWN
        info = self._user_value(desc)
        by_value = without_memory(node, None, info.category)
        return info if by_value is None else by_value._replace(fqn=info.fqn)

    def _user_value(self, desc: Descriptor) -> RoleInfo:
        """What a value of the user's function is, parts of it included."""
        whole = desc.whole
        while whole.kind in (_K.VIEW_BASE, _K.SYNTHETIC_BASE) and whole.of is not None:
            whole = whole.of.whole
        known = self._known(whole)
        if known is None:
            return UNKNOWN
        name = known.fqn or known.source or None
        if name and desc.attribute_path:
            name = ".".join((name, *desc.attribute_path))
        return RoleInfo(known.role, CATEGORIES[known.role], name)

    def _known(self, whole: Descriptor) -> DynamoInput | None:
        """Dynamo's description of an input."""
        if whole.kind is _K.PLAIN_INPUT and whole.index is not None:
            return self.by_index.get(whole.index)
        if whole.kind in (_K.PARAMETER, _K.BUFFER) and whole.target is not None:
            role = Role.PARAMETER if whole.kind is _K.PARAMETER else Role.BUFFER
            named = DynamoInput(whole.target, role=role, fqn=whole.target)
            return self.by_name.get(whole.target, named)
        return None

    def _traced_inputs(self) -> list[int]:
        """Position of the graph input for each ``input_info`` of a forward.

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
        values = []
        for at, (node, desc) in enumerate(zip(self.results, self.output_descs, strict=True)):
            if not isinstance(node, torch.fx.Node):
                values.append(absent_value(at))
                continue
            if at in saved:
                kept_for = (
                    Category.CHECKPOINTED_INPUT if enters_region(node) else Category.ACTIVATION
                )
                activation = RoleInfo(Role.SAVED_FOR_BACKWARD, kept_for)
                info = without_memory(node, None, _DETAIL) or activation
                alias = self.position.get(node)
            else:
                info = self._forward_output(node, desc)
                if node in kept and info.category is Category.OUTPUT and has_memory(node):
                    info = info._replace(category=Category.ACTIVATION)
                alias = None
                if info.role in (Role.USER_OUTPUT, Role.PARAMETER_GRADIENT, Role.INPUT_GRADIENT):
                    alias = self._alias(at - tokens, node)
            if alias is not None and has_memory(node):
                info = RoleInfo(info.role, inputs[alias].category, inputs[alias].fqn)
            else:
                alias = None
            values.append(self._output(at, node, info, alias))
        return tuple(values)

    def _forward_output(self, node: torch.fx.Node, desc: Descriptor | None) -> RoleInfo:
        by_value = without_memory(node, desc, Category.OUTPUT)
        if by_value is not None:
            return by_value
        kind = desc.whole.kind if desc is not None else None
        if kind in (_K.INPUT_MUTATION, _K.METADATA_MUTATION):
            mutated = desc.whole.of if desc is not None else None
            fqn = self._user_value(mutated).fqn if mutated is not None else None
            return RoleInfo(Role.MUTATED_INPUT, Category.OUTPUT, fqn)
        if kind is _K.INTERMEDIATE_BASE:
            return RoleInfo(Role.INTERMEDIATE_BASE, Category.OUTPUT)
        if self.captured_outputs is None:
            return RoleInfo(Role.USER_OUTPUT, Category.OUTPUT)
        gradient = RoleInfo(Role.INPUT_GRADIENT, _DETAIL)
        if desc is None or kind is not _K.PLAIN_OUTPUT or desc.whole.index is None:
            return gradient
        return self.captured_outputs.get(desc.whole.index, gradient)

    def _alias(self, at: int, node: torch.fx.Node) -> int | None:
        """The graph input whose memory the output at ``at``, tokens not counted, is, by
        AOTAutograd's analysis."""
        if self.metadata is not None and self.metadata.knows("input_info", "output_info"):
            number = at - self.metadata.num_mutated_outputs
            if 0 <= number < len(self.metadata.output_info):
                info = self.metadata.output_info[number]
                if info.output_type.aliases_input and info.base_idx is not None:
                    traced = self.traced
                    return traced[info.base_idx] if info.base_idx < len(traced) else None
        return self.position.get(node)

    def _saved_positions(self) -> frozenset[int]:
        """Outputs that are there for the backward."""
        if self.kind is not GraphKind.FORWARD:
            return frozenset()
        if self.metadata is not None and self.metadata.is_partitioned:
            return frozenset(
                itertools.chain.from_iterable(self.metadata.saved_positions(len(self.results)))
            )
        kinds = [d.kind if d is not None else None for d in self.output_descs]
        return frozenset(i for i, kind in enumerate(kinds) if kind is _K.SAVED_FOR_BACKWARD)

    # --- backward -------------------------------------------------------------------------

    def backward_inputs(self) -> tuple[GraphValue, ...]:
        saved = self._saved_as_forward_outputs()
        donated = (self.metadata.bw_donated_idxs if self.metadata is not None else None) or ()
        values = []
        for at, (node, desc) in enumerate(zip(self.placeholders, self.input_descs, strict=True)):
            if at >= len(saved):
                of = self.forward.output_of_tangent(desc) if self.forward is not None else None
                extra = self._backward_extra(node, desc)
                values.append(graph_value(at, node, extra, gradient_of=of))
                continue
            info = self._saved_value(node, desc, saved[at])
            values.append(
                graph_value(at, node, info, forward_output=saved[at], donated=at in donated)
            )
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
        outputs = self.forward.outputs if self.forward is not None else ()
        if self.metadata is None or not self.metadata.is_partitioned:
            # Partitioning keeps a node's name on both sides.
            index = {v.name: v.index for v in outputs}
            return [index.get(n.name) for n in self.placeholders[:count]]
        # Counted from the end of the forward's outputs: tokens may come first.
        end = len(outputs) if self.forward is not None else self.metadata.num_forward + count
        symints = self.metadata.num_symints_saved_for_bw or 0
        return [*range(end - symints, end), *range(end - count, end - symints)]

    def _saved_value(
        self, node: torch.fx.Node, desc: Descriptor | None, output: int | None
    ) -> RoleInfo:
        origin: GraphValue | None = None
        if self.forward is not None:
            origin = self.forward.input_described(desc)
            if origin is None and output is not None and output < len(self.forward.outputs):
                alias = self.forward.outputs[output].alias_of_input
                origin = None if alias is None else self.forward.inputs[alias]
        if origin is not None:
            return RoleInfo(origin.role, origin.category, origin.fqn)
        by_value = without_memory(node, None, _DETAIL)
        if by_value is not None:
            return by_value
        if desc is not None:  # a forward input, but nothing describes the forward
            return self._user_value(desc)
        made = self.forward.outputs if self.forward is not None else ()
        category = made[output].category if output is not None and output < len(made) else None
        if category is not Category.CHECKPOINTED_INPUT:
            category = Category.ACTIVATION
        return RoleInfo(Role.SAVED_FOR_BACKWARD, category)

    def _backward_extra(self, node: torch.fx.Node, desc: Descriptor | None) -> RoleInfo:
        """An input of the backward that the forward did not save."""
        by_value = without_memory(node, desc, _DETAIL)
        if by_value is not None or desc is None:
            return by_value or UNKNOWN
        tangent = RoleInfo(Role.TANGENT, _DETAIL)
        return tangent if desc.whole.kind is _K.TANGENT else self._user_value(desc)

    def backward_outputs(self) -> tuple[GraphValue, ...]:
        values = []
        for at, (node, desc) in enumerate(zip(self.results, self.output_descs, strict=True)):
            if not isinstance(node, torch.fx.Node):
                values.append(absent_value(at))
                continue
            alias = self.position.get(node) if has_memory(node) else None
            values.append(self._output(at, node, self._backward_output(node, desc), alias))
        return tuple(values)

    def _backward_output(self, node: torch.fx.Node, desc: Descriptor | None) -> RoleInfo:
        by_value = without_memory(node, desc, _DETAIL)
        if by_value is not None:
            return by_value
        of = desc.whole.of if desc is not None else None
        if of is None or desc is None:
            return UNKNOWN
        owner = self.forward.input_described(of) if self.forward is not None else None
        role, fqn = (owner.role, owner.fqn) if owner is not None else self._user_value(of)[::2]
        if desc.whole.kind is _K.INPUT_MUTATION:
            return RoleInfo(Role.MUTATED_INPUT, Category.OUTPUT, fqn)
        if desc.whole.kind is not _K.GRADIENT:
            return UNKNOWN
        fqn = ".".join((fqn, *desc.attribute_path)) if fqn else None
        if role is Role.PARAMETER:
            return RoleInfo(Role.PARAMETER_GRADIENT, Category.GRADIENT, fqn)
        return RoleInfo(Role.INPUT_GRADIENT, _DETAIL, fqn)

    def _output(
        self, at: int, node: torch.fx.Node, info: RoleInfo, alias: int | None
    ) -> GraphValue:
        stack = self.stacks[at] if at < len(self.stacks) else None
        frame = user_frame(stack or node.meta.get("stack_trace"))
        return graph_value(at, node, info, frame=frame, alias_of_input=alias)


def _as_state(value: GraphValue) -> GraphValue:
    """An input that is written to: state, if it is known to stay."""
    stays = value.role is Role.BUFFER or (value.role is Role.USER_INPUT and value.static)
    by_value = value.category in (Category.PARAMETER, Category.INPUT)
    return replace(value, category=Category.PERSISTENT_STATE) if stays and by_value else value


def enters_region(node: torch.fx.Node) -> bool:
    """Whether a value is made outside of a checkpointed region that uses it."""
    own = node.meta.get("ac_graph_id")
    regions = (user.meta.get("ac_graph_id") for user in node.users)
    return any(region is not None and region != own for region in regions)


def _aligned(descs: object, count: int) -> list[Descriptor | None]:
    """Descriptors of ``count`` outputs.

    Where AOTAutograd has taken effect tokens out of the outputs again, as it does for
    Inductor, it leaves their descriptors in.
    """
    known = [descriptor(d) for d in descs] if isinstance(descs, (list, tuple)) else []
    if len(known) > count:
        known = [d for d in known if d is None or d.kind is not _K.TOKEN]
    return known if len(known) == count else [None] * count


_TORCH_FOLDER = torch.__path__[0]


def user_frame(stack: str | None) -> str | None:
    """``file:line`` of the innermost frame outside torch, or of the innermost one at all.

    Args:
        stack: text as ``traceback`` prints it, innermost frame last.
    """
    frames = parse_stack_trace(stack)
    own = [frame for frame in frames if not frame.file.startswith(_TORCH_FOLDER)]
    return next((frame.location for frame in reversed(own or frames)), None)

"""AOTAutograd's metadata as immutable data of our own: what somebody reads of it, and no more.

``roles/`` and ``straight_calls/`` read it for every compiled graph. Outputs of a compiled forward
graph stand in this order::

    mutated inputs | user outputs | intermediate bases | rng offset |
    saved tensors | saved opaque objects | saved symints
    └──────────────── num_forward ────────────────────┘

and inputs of its backward::

    symints | saved tensors | opaque objects | tangents | rng | BackwardState

Note [Which inputs metadata counts]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The metadata that the tracing context offers describes the function *as it was traced*:
duplicate arguments removed, overlapping ones replaced by a base, tensor subclasses taken
apart into dense tensors. Its ``input_info[i]`` and every ``base_idx`` of an input thus
count the forward graph's inputs (tokens and random-number inputs aside), not the
arguments of the user's function. Dynamo's arguments are found through descriptors.

It is copied inside the inner compile, before Inductor runs: AOTAutograd strips its metadata right
after, and Inductor rewrites the graph in place.

Note [Fields that cannot be read]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
These are private objects of torch, and a torch that nobody has tried with memprof may name or
fill a field in another way. That costs the field and nothing else: it is left at its default, named
in ``ViewAndMutationMeta.unknown``, and whoever asks for something that follows
from it finds that out (``knows``) and does without. ``tell`` hears of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

import torch

# --- what a compiled forward writes to, what its outputs alias, what it saves ---------------


class MutationType(str, Enum):
    """Who carries a mutation of an input out. The values are AOTAutograd's names."""

    NOT_MUTATED = "not_mutated"
    MUTATED_IN_GRAPH = "mutated_in_graph"
    """The compiled graph writes into the input."""
    MUTATED_OUT_GRAPH = "mutated_out_graph"
    """The graph returns the new value; AOTAutograd copies it into the input afterwards."""


class OutputType(str, Enum):
    """How a user output relates to memory that somebody else holds. AOTAutograd's names."""

    NON_ALIAS = "non_alias"
    """Memory of its own."""
    ALIAS_OF_INPUT = "alias_of_input"
    """A view of input ``base_idx``, made again from that input after the call."""
    IS_INPUT = "is_input"
    """Input ``base_idx`` itself."""
    ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT = "alias_of_intermediate_save_as_output"
    """A view of an intermediate, which the graph returns for it: this is the output
    because of which intermediate base ``base_idx`` is a graph output."""
    ALIAS_OF_INTERMEDIATE = "alias_of_intermediate"
    """A view of intermediate base ``base_idx``, which another output has already added."""
    ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT = "alias_of_intermediate_base_is_user_output"
    """A view of user output ``base_idx``."""
    UNSAFE_VIEW_ALIAS = "unsafe_view_alias"
    """A view of an intermediate that nobody else can reach: treated as no alias."""
    CUSTOM_FUNCTION_VIEW = "custom_function_view"
    """A view made by a custom autograd.Function: returned as it is, not replayed."""

    @property
    def is_alias(self) -> bool:
        """Whether AOTAutograd makes the output anew after the call, from what it is a view of."""
        return self not in (
            OutputType.NON_ALIAS,
            OutputType.UNSAFE_VIEW_ALIAS,
            OutputType.CUSTOM_FUNCTION_VIEW,
        )

    @property
    def aliases_input(self) -> bool:
        """Whether its memory is that of an input."""
        return self in (OutputType.ALIAS_OF_INPUT, OutputType.IS_INPUT)


@dataclass(frozen=True)
class OutputAliasInfo:
    """One user output.

    Attributes:
        output_type: how it relates to other memory.
        base_idx: what it is a view of, as ``output_type`` says.
        requires_grad: a backward of the backward may be asked for through it.
        takes_gradient: it is a tensor, and the backward is handed its gradient.
        is_tensor: it is a tensor.
        dynamic_dims: dimensions that Dynamo takes for varying, None if it is told of none.
    """

    output_type: OutputType
    base_idx: int | None
    requires_grad: bool
    takes_gradient: bool = False
    is_tensor: bool = True
    dynamic_dims: frozenset[int] | None = None


@dataclass(frozen=True)
class TangentFormat:
    """The layout of a gradient that a backward was compiled for.

    Attributes:
        size, stride: elements in each dimension; None where ``memory_format`` says it.
        memory_format: a ``torch.memory_format``.
    """

    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    memory_format: Any


@dataclass(frozen=True)
class ViewAndMutationMeta:
    """The view and mutation metadata of one compiled function.

    Attributes:
        input_info: how each input is mutated.
        output_info: one entry a user output.
        num_intermediate_bases: bases that the graph returns for outputs that view them.
        is_rng_op_functionalized: random operators take seed and offset as inputs.
        num_symints_saved_for_bw: symbolic integers among the forward's outputs for its
            backward; None until the joint graph is partitioned.
        num_opaque_objects_saved_for_bw: opaque objects among the saved values.
        bw_donated_idxs: inputs of the backward whose memory nobody else holds, so that it may
            overwrite them; None until partitioned.
        mutated_graph_handled_indices_seen_by_autograd: inputs that the graph writes to, and whose
            version it leaves to be advanced.
        num_tensors_saved_with_no_vc_check: how many tensors, the last of those saved, are kept
            without a check of their version; None until partitioned.
        saved_tensor_is_graph_input: for each saved tensor; empty before torch 2.15.
        dynamic_saved_tensors_idxs: saved tensors with the dimensions that vary.
        subclass_tangent_meta: the layout of each gradient that the backward takes; None for a
            subclass, or where torch has not decided it.
        tokens: how many effects of the forward are kept in an order.
        num_backward_tokens: how many of the backward.
        num_graphsafe_rng_states: states of generators that it takes as inputs.
        indices_of_inputs_that_requires_grad_with_mutations_in_bw: inputs that its backward writes
            to although they ask for a gradient.
        grad_enabled_mutation: the grad mode that it leaves behind, None for the one it met.
        deterministic: whether deterministic algorithms were asked for when it was traced.
        unknown: fields that torch has in another form than memprof knows, e.g.
            ``num_intermediate_bases`` or ``output_info.base_idx``; they have their default.
    """

    input_info: tuple[MutationType, ...] = ()
    output_info: tuple[OutputAliasInfo, ...] = ()
    num_intermediate_bases: int = 0
    is_rng_op_functionalized: bool = False
    num_symints_saved_for_bw: int | None = None
    num_opaque_objects_saved_for_bw: int | None = None
    bw_donated_idxs: tuple[int, ...] | None = None
    mutated_graph_handled_indices_seen_by_autograd: tuple[int, ...] = ()
    num_tensors_saved_with_no_vc_check: int | None = None
    saved_tensor_is_graph_input: tuple[bool, ...] = ()
    dynamic_saved_tensors_idxs: tuple[tuple[int, frozenset[int]], ...] = ()
    subclass_tangent_meta: tuple[TangentFormat | None, ...] = ()
    tokens: int = 0
    num_backward_tokens: int = 0
    num_graphsafe_rng_states: int = 0
    indices_of_inputs_that_requires_grad_with_mutations_in_bw: tuple[int, ...] = ()
    grad_enabled_mutation: bool | None = None
    deterministic: bool | None = None
    unknown: tuple[str, ...] = ()

    def knows(self, *names: str) -> bool:
        """Whether these fields could be read, with all that is in them."""
        return not any(field.partition(".")[0] in names for field in self.unknown)

    @property
    def mutated_in_graph(self) -> tuple[int, ...]:
        """Inputs that the graph itself writes."""
        return tuple(i for i, m in enumerate(self.input_info) if m is MutationType.MUTATED_IN_GRAPH)

    @property
    def mutated(self) -> tuple[int, ...]:
        """Inputs that are written to, by the graph or after the call."""
        none = MutationType.NOT_MUTATED
        return tuple(i for i, m in enumerate(self.input_info) if m is not none)

    @property
    def num_mutated_outputs(self) -> int:
        """Inputs that AOTAutograd mutates after the call; each is a graph output."""
        return self.input_info.count(MutationType.MUTATED_OUT_GRAPH)

    @property
    def num_forward(self) -> int:
        """Graph outputs before the first saved value."""
        returned = self.num_mutated_outputs + len(self.output_info) + self.num_intermediate_bases
        return returned + self.is_rng_op_functionalized

    @property
    def is_partitioned(self) -> bool:
        """Whether it is known what the forward saves for its backward, and where it stands."""
        return self.num_symints_saved_for_bw is not None and self.knows(
            *("input_info", "output_info", "num_intermediate_bases", "is_rng_op_functionalized"),
            *("num_symints_saved_for_bw", "num_opaque_objects_saved_for_bw"),
        )

    def saved_positions(self, num_outputs: int) -> tuple[range, range, range]:
        """Tensors, opaque objects and symints among a partitioned forward's outputs."""
        symints = num_outputs - (self.num_symints_saved_for_bw or 0)
        opaque = symints - (self.num_opaque_objects_saved_for_bw or 0)
        return range(self.num_forward, opaque), range(opaque, symints), range(symints, num_outputs)


# --- copied from torch's ------------------------------------------------------------------

T = TypeVar("T")
Tell = Callable[[str, Exception], None]
"""Hears of a field that cannot be read, as ``owner.field``, and why."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads fields of ``source``, an object of torch."""

    owner: str  # what a field's name begins with in what is told
    source: Any
    tell: Tell

    def __call__(
        self,
        name: str,
        neutral: T,
        convert: Callable[[Any], T] = lambda value: value,
        *,
        optional: bool = False,
    ) -> T:
        """``convert`` of the field ``name``; ``neutral`` where that cannot be had, of which nobody
        is told if it is ``optional`` and this torch has no such field."""
        if optional and not hasattr(self.source, name):
            return neutral
        try:
            return convert(getattr(self.source, name))
        except Exception as error:
            self.tell(f"{self.owner}{name}", error)
            return neutral


def view_and_mutation_meta(
    meta: Any, tell: Tell = lambda field, error: None
) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's.
        tell: hears of fields that cannot be read (Note [Fields that cannot be read]).
    """
    unknown: dict[str, None] = {}

    def told(name: str, error: Exception) -> None:
        if name not in unknown:
            unknown[name] = None
            tell(f"ViewAndMutationMeta.{name}", error)

    def each(owner: str, copy: Callable[[_Reader], Any]) -> Callable[[Any], Any]:
        return lambda infos: tuple(copy(_Reader(owner, i, told)) for i in infos)

    conversions: dict[str, Callable[[Any], Any]] = {
        "input_info": each("input_info.", _mutation),
        "output_info": each("output_info.", _output),
        "bw_donated_idxs": lambda v: None if v is None else tuple(v),
        "mutated_graph_handled_indices_seen_by_autograd": tuple,
        "saved_tensor_is_graph_input": tuple,
        "dynamic_saved_tensors_idxs": lambda v: tuple((i, frozenset(d)) for i, d in v.items()),
        "subclass_tangent_meta": lambda v: tuple(map(_tangent, v)),
        "tokens": len,
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw": tuple,
    }
    read = _Reader("", meta, told)
    known: dict[str, Any] = {}
    for field in fields(ViewAndMutationMeta):
        if field.name != "unknown":
            convert = conversions.get(field.name, lambda value: value)
            optional = field.name == "saved_tensor_is_graph_input"
            known[field.name] = read(field.name, field.default, convert, optional=optional)
    return ViewAndMutationMeta(**known, unknown=tuple(unknown))


def _mutation(read: _Reader) -> MutationType:
    return read("mutation_type", MutationType.NOT_MUTATED, lambda v: MutationType(v.name.lower()))


def _output(read: _Reader) -> OutputAliasInfo:
    requires_grad = read("requires_grad", False)
    is_tensor = read("raw_type", False, lambda v: issubclass(v, torch.Tensor))
    # A name of its own from 2.13 on.
    takes = read("requires_grad_for_backward", requires_grad, optional=True)
    return OutputAliasInfo(
        output_type=read("output_type", OutputType.NON_ALIAS, lambda v: OutputType(v.name)),
        base_idx=read("base_idx", None),
        requires_grad=requires_grad,
        takes_gradient=is_tensor and bool(takes),
        is_tensor=is_tensor,
        dynamic_dims=read("dynamic_dims", None, lambda v: None if v is None else frozenset(v)),
    )


def _tangent(meta: Any) -> TangentFormat | None:
    layout = getattr(meta, "memory_format", None)
    if type(meta).__name__ != "PlainTensorMeta" or layout is None:
        return None
    size, stride = layout.size, layout.stride
    return TangentFormat(
        size=None if size is None else tuple(size),
        stride=None if stride is None else tuple(stride),
        memory_format=layout.memory_format,
    )


# --- what one input or output of a graph is -------------------------------------------------


class DescriptorKind(Enum):
    """Root of a descriptor, or the transformation that made one value from another: how the names
    of AOTAutograd's classes begin."""

    # Inputs.
    PLAIN_INPUT = ("PlainAOTInput",)
    PARAMETER = ("ParamAOTInput",)
    BUFFER = ("BufferAOTInput",)
    VIEW_BASE = ("ViewBaseAOTInput",)
    SYNTHETIC_BASE = ("SyntheticBaseAOTInput",)
    TANGENT = ("TangentAOTInput",)
    # Outputs.
    PLAIN_OUTPUT = ("PlainAOTOutput",)
    INPUT_MUTATION = ("InputMutationAOTOutput",)
    METADATA_MUTATION = ("MetadataMutationAOTOutput",)
    INTERMEDIATE_BASE = ("IntermediateBaseAOTOutput",)
    GRADIENT = ("GradAOTOutput",)
    SAVED_FOR_BACKWARD = ("SavedForBackwardsAOTOutput", "SavedForBackwardsNoVcCheckAOTOutput")
    # Both.
    SUBCLASS_ATTRIBUTE = ("SubclassGetAttrAOT",)
    SUBCLASS_SIZE = ("SubclassSizeAOT", "SubclassStrideAOT")
    RNG = ("PhiloxForward", "PhiloxBackward", "PhiloxUpdated")
    TOKEN = ("ForwardTokenAOT", "BackwardTokenAOT")
    DUMMY = ("DummyAOT",)


@dataclass(frozen=True)
class Descriptor:
    """One value, described by how it comes from the values of the user's function.

    Attributes:
        kind: what it is.
        text: AOTAutograd's own expression for it; equal text is the same value.
        index: position, for a plain input or output, a token, a saved value, or the
            dimension of a subclass size or stride.
        target: name of a parameter or buffer, or of a subclass attribute.
        of: the value it is a tangent, gradient, base, mutation or part of.
    """

    kind: DescriptorKind
    text: str
    index: int | None = None
    target: str | None = None
    of: Descriptor | None = None

    @property
    def whole(self) -> Descriptor:
        """The value itself for a part of a tensor subclass."""
        parts = (DescriptorKind.SUBCLASS_ATTRIBUTE, DescriptorKind.SUBCLASS_SIZE)
        return self.of.whole if self.kind in parts and self.of is not None else self

    @property
    def attribute_path(self) -> tuple[str, ...]:
        """Attributes that lead from ``whole`` to this part of a tensor subclass."""
        outer = self.of.attribute_path if self.of is not None and self.whole is not self else ()
        is_attribute = self.kind is DescriptorKind.SUBCLASS_ATTRIBUTE and self.target is not None
        return (*outer, self.target) if is_attribute and self.target else outer


_OF = ("base", "base_of", "output", "mutated_input", "grad_of")


def descriptor(desc: Any) -> Descriptor | None:
    """Copy of an ``AOTInput`` or ``AOTOutput``; None for None and for unknown kinds."""
    name = type(desc).__name__
    kind = next((k for k in DescriptorKind if name.startswith(k.value)), None)
    if kind is None:
        return None
    of = next((getattr(desc, name) for name in _OF if hasattr(desc, name)), None)
    return Descriptor(
        kind=kind,
        text=_expression(desc),
        index=getattr(desc, "idx", None),
        target=getattr(desc, "target", getattr(desc, "attr", None)),
        of=descriptor(of),
    )


def _expression(desc: Any) -> str:
    try:
        return str(desc.expr())
    except Exception:  # forward and backward match by it: any text that says all will do
        return repr(desc)

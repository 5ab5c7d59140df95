"""AOTAutograd's metadata as immutable data of our own: what somebody reads of it, and no more.

``graph_io.py`` and ``straight_calls`` read it for every compiled graph. Outputs of a compiled
forward graph stand in this order::

    mutated inputs | user outputs | intermediate bases | rng offset |
    saved tensors | saved opaque objects | saved symints
    └──────────────── num_forward ────────────────────┘

and inputs of its backward::

    symints | saved tensors | opaque objects | tangents | rng | BackwardState

Note [Which inputs metadata counts]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The metadata describes the function *as it was traced*: duplicate arguments removed, overlapping
ones replaced by a base, tensor subclasses taken apart into dense tensors. So its inputs are those
of the forward graph (tokens and random-number inputs aside), not the arguments of the user's
function, which are found through descriptors.

Note [Fields that cannot be read]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A torch that nobody has tried with memprof may name or fill a private field in another way. That
costs the field and nothing else: it is left at its default, named in
``ViewAndMutationMeta.unknown``, and whoever asks for something that follows from it finds that out
(``knows``) and does without. ``on_unknown`` is called for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

import torch

# --- what a compiled forward writes to, what its outputs alias, what it saves ---------------


class MutationType(str, Enum):
    """Names who carries a mutation of an input out. The values are AOTAutograd's names."""

    NOT_MUTATED = "not_mutated"
    MUTATED_IN_GRAPH = "mutated_in_graph"
    """The compiled graph writes into the input."""
    MUTATED_OUT_GRAPH = "mutated_out_graph"
    """The graph returns the new value; AOTAutograd copies it into the input afterwards."""


class OutputType(str, Enum):
    """Kinds of user outputs, by whose memory they share. AOTAutograd's names."""

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
        """Tells whether AOTAutograd makes the output anew after the call, from what it is a view
        of."""
        return self not in (
            OutputType.NON_ALIAS,
            OutputType.UNSAFE_VIEW_ALIAS,
            OutputType.CUSTOM_FUNCTION_VIEW,
        )


@dataclass(frozen=True, slots=True)
class OutputAliasInfo:
    """Aliasing of one user output, as AOTAutograd knows it."""

    output_type: OutputType
    base_idx: int | None  # what it is a view of, as ``output_type`` says
    requires_grad: bool  # a backward of the backward may be asked for through it
    is_tensor: bool
    takes_gradient: bool  # it is a tensor, and the backward is handed its gradient
    dynamic_dims: frozenset[int] | None  # that Dynamo takes for varying, None if it is told of none

    @property
    def aliased_input(self) -> int | None:
        """Index of the input whose memory the output is; None if of none."""
        of_input = self.output_type in (OutputType.ALIAS_OF_INPUT, OutputType.IS_INPUT)
        return self.base_idx if of_input else None


@dataclass(frozen=True, slots=True)
class TangentFormat:
    """The layout of a gradient that a backward was compiled for: elements in each dimension, None
    where ``memory_format``, a ``torch.memory_format``, says it."""

    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    memory_format: Any


@dataclass(frozen=True, slots=True)
class ViewAndMutationMeta:
    """The view and mutation metadata of one compiled function, by torch's names.

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
        tokens, num_backward_tokens: how many effects of the forward and of the backward are kept
            in an order.
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
        """Tells whether these fields could be read, with all that is in them."""
        return not any(field.partition(".")[0] in names for field in self.unknown)

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
        """Tells whether it is known what the forward saves for its backward, and where it
        stands.
        """
        places = ("input_info", "output_info", "num_intermediate_bases", "is_rng_op_functionalized")
        saved = ("num_symints_saved_for_bw", "num_opaque_objects_saved_for_bw")
        return self.num_symints_saved_for_bw is not None and self.knows(*places, *saved)

    def saved_positions(self, num_outputs: int) -> tuple[range, range, range]:
        """Tensors, opaque objects and symints among a partitioned forward's outputs."""
        symints = num_outputs - (self.num_symints_saved_for_bw or 0)
        opaque = symints - (self.num_opaque_objects_saved_for_bw or 0)
        return range(self.num_forward, opaque), range(opaque, symints), range(symints, num_outputs)


T = TypeVar("T")


def view_and_mutation_meta(
    meta: Any, on_unknown: Callable[[str, Exception], None] = lambda field, error: None
) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's.
        on_unknown: called once for each field that cannot be read, with ``owner.field`` and the
            error.
    """
    unknown: list[str] = []

    def read(source: Any, name: str, neutral: T, convert: Callable[[Any], T], owner: str = "") -> T:
        try:
            return convert(getattr(source, name))
        except Exception as error:
            if owner + name not in unknown:
                unknown.append(owner + name)
                on_unknown(f"ViewAndMutationMeta.{owner}{name}", error)
            return neutral

    def mutation(info: Any) -> MutationType:
        none = MutationType.NOT_MUTATED
        of_name = lambda v: MutationType(v.name.lower())  # noqa: E731
        return read(info, "mutation_type", none, of_name, "input_info.")

    def output(info: Any) -> OutputAliasInfo:
        def of(name: str, neutral: T, convert: Callable[[Any], T] = lambda v: v) -> T:
            return read(info, name, neutral, convert, "output_info.")

        requires_grad = of("requires_grad", False)
        is_tensor = of("raw_type", False, lambda v: issubclass(v, torch.Tensor))
        # A name of its own from 2.13 on.
        takes = getattr(info, "requires_grad_for_backward", requires_grad)
        return OutputAliasInfo(
            output_type=of("output_type", OutputType.NON_ALIAS, lambda v: OutputType(v.name)),
            base_idx=of("base_idx", None),
            requires_grad=requires_grad,
            is_tensor=is_tensor,
            takes_gradient=is_tensor and bool(takes),
            dynamic_dims=of("dynamic_dims", None, lambda v: None if v is None else frozenset(v)),
        )

    conversions: dict[str, Callable[[Any], Any]] = {
        "input_info": lambda v: tuple(map(mutation, v)),
        "output_info": lambda v: tuple(map(output, v)),
        "bw_donated_idxs": lambda v: None if v is None else tuple(v),
        "mutated_graph_handled_indices_seen_by_autograd": tuple,
        "saved_tensor_is_graph_input": tuple,
        "dynamic_saved_tensors_idxs": lambda v: tuple((i, frozenset(d)) for i, d in v.items()),
        "subclass_tangent_meta": lambda v: tuple(map(_tangent, v)),
        "tokens": len,
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw": tuple,
    }
    not_in_every_torch = {"saved_tensor_is_graph_input"} - set(dir(meta))
    values: dict[str, Any] = {
        field.name: read(meta, field.name, field.default, conversions.get(field.name, lambda v: v))
        for field in fields(ViewAndMutationMeta)
        if field.name != "unknown" and field.name not in not_in_every_torch
    }
    return ViewAndMutationMeta(**values, unknown=tuple(unknown))


def _tangent(meta: Any) -> TangentFormat | None:
    layout = getattr(meta, "memory_format", None)
    if type(meta).__name__ != "PlainTensorMeta" or layout is None:
        return None
    size, stride = layout.size, layout.stride
    return TangentFormat(size and tuple(size), stride and tuple(stride), layout.memory_format)


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
    INPUT_MUTATION = ("InputMutationAOTOutput", "MetadataMutationAOTOutput")
    INTERMEDIATE_BASE = ("IntermediateBaseAOTOutput",)
    GRADIENT = ("GradAOTOutput",)
    SAVED_FOR_BACKWARD = ("SavedForBackwardsAOTOutput", "SavedForBackwardsNoVcCheckAOTOutput")
    # Both.
    SUBCLASS_ATTRIBUTE = ("SubclassGetAttrAOT",)
    SUBCLASS_SIZE = ("SubclassSizeAOT", "SubclassStrideAOT")
    RNG = ("PhiloxForward", "PhiloxBackward", "PhiloxUpdated")
    TOKEN = ("ForwardTokenAOT", "BackwardTokenAOT")
    DUMMY = ("DummyAOT",)
    NONE = ()
    """No descriptor, or one that memprof does not know."""


@dataclass(frozen=True)
class Descriptor:
    """One value, described by how it comes from the values of the user's function.

    Attributes:
        text: AOTAutograd's own expression for it; equal text is the same value.
        index: position of a plain input or output.
        target: name of a parameter or buffer, or of a subclass attribute.
        of: the value it is a tangent, gradient, base, mutation or part of.
    """

    kind: DescriptorKind
    text: str = ""
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
        if self.of is None or self.whole is self:
            return ()
        is_attribute = self.kind is DescriptorKind.SUBCLASS_ATTRIBUTE
        return (*self.of.attribute_path, *([self.target] if is_attribute and self.target else ()))


_OF = ("base", "base_of", "output", "mutated_input", "grad_of")


def descriptor(desc: Any) -> Descriptor:
    """Copy of an ``AOTInput`` or ``AOTOutput``, or of None."""
    name = type(desc).__name__
    kind = next((k for k in DescriptorKind if name.startswith(k.value)), None)
    if kind is None:
        return Descriptor(DescriptorKind.NONE)
    try:
        text = str(desc.expr())
    except Exception:  # forward and backward match by it: any text that says all will do
        text = repr(desc)
    of = next((getattr(desc, name) for name in _OF if hasattr(desc, name)), None)
    return Descriptor(
        kind,
        text,
        index=getattr(desc, "idx", None),
        target=getattr(desc, "target", getattr(desc, "attr", None)),
        of=descriptor(of) if of is not None else None,
    )

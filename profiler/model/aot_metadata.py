"""AOTAutograd's metadata as immutable data: what somebody reads of it, and no more.

``compile_backend/stages/describe/aot_metadata.py`` copies torch's. Outputs of a compiled forward
graph stand in this order::

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
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .limits import Int


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

    @property
    def is_of_base(self) -> bool:
        """Tells whether ``base_idx`` counts intermediate bases."""
        return self in (
            OutputType.ALIAS_OF_INTERMEDIATE,
            OutputType.ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT,
        )


@dataclass(frozen=True, slots=True)
class InputAliasInfo:
    """Mutation of one input of the traced function, as AOTAutograd knows it.

    Attributes:
        is_leaf, requires_grad: of the tensor that it was traced with.
        mutates_data: its elements are written to.
        mutates_metadata: its sizes, strides or offset are changed.
        mutates_storage_metadata: it is given another storage (``set_``).
        mutation_inductor_storage_resize: its storage is resized, as FSDP does.
        mutations_hidden_from_autograd: all writes are through ``.data`` or ``detach()``.
        mutations_under_no_grad_or_inference_mode: all writes are where no gradient is recorded.
    """

    mutation_type: MutationType = MutationType.NOT_MUTATED
    is_leaf: bool = False
    requires_grad: bool = False
    mutates_data: bool = False
    mutates_metadata: bool = False
    mutates_storage_metadata: bool = False
    mutation_inductor_storage_resize: bool = False
    mutations_hidden_from_autograd: bool = False
    mutations_under_no_grad_or_inference_mode: bool = False

    @property
    def words(self) -> str:
        """Kinds of its mutation, e.g. ``data, under no_grad``; "" if there is none."""
        kinds = {
            "data": self.mutates_data,
            "sizes or strides": self.mutates_metadata,
            "storage replaced": self.mutates_storage_metadata,
            "storage resized": self.mutation_inductor_storage_resize,
            "hidden from autograd": self.mutations_hidden_from_autograd,
            "under no_grad": self.mutations_under_no_grad_or_inference_mode,
        }
        if self.mutation_type is MutationType.NOT_MUTATED:
            return ""
        return ", ".join(words for words, holds in kinds.items() if holds)


@dataclass(frozen=True, slots=True)
class OutputAliasInfo:
    """Aliasing of one user output, as AOTAutograd knows it.

    Attributes:
        base_idx: index of what it is a view of, among what ``output_type`` says; None if of
            nothing.
        requires_grad: a backward of the backward may be asked for through it.
        is_tensor: whether ``raw_type`` is a tensor's class.
        takes_gradient: it is a tensor, and the backward is handed its gradient.
        dynamic_dims: dimensions that Dynamo takes for varying, None if it is told of none.
    """

    output_type: OutputType
    base_idx: Int | None
    requires_grad: bool
    is_tensor: bool
    takes_gradient: bool
    dynamic_dims: frozenset[Int] | None

    @property
    def aliased_input(self) -> int | None:
        """Index of the input whose memory the output is; None if of none."""
        of_input = self.output_type in (OutputType.ALIAS_OF_INPUT, OutputType.IS_INPUT)
        return self.base_idx if of_input else None


@dataclass(frozen=True, slots=True)
class MemoryFormatMeta:
    """Layout of a gradient that a backward was compiled for: elements in each dimension, None where
    ``memory_format``, e.g. ``channels_last``, says it."""

    size: tuple[Int, ...] | None
    stride: tuple[Int, ...] | None
    memory_format: str | None


@dataclass(frozen=True, slots=True)
class ViewAndMutationMeta:
    """The view and mutation metadata of one compiled function, by torch's names.

    Attributes:
        input_info: one entry an input.
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
        static_input_indices: inputs whose address is expected to stay: parameters, buffers, and
            what ``torch._dynamo.mark_static_address`` was called for.
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

    input_info: tuple[InputAliasInfo, ...] = ()
    output_info: tuple[OutputAliasInfo, ...] = ()
    num_intermediate_bases: Int = 0
    is_rng_op_functionalized: bool = False
    num_symints_saved_for_bw: Int | None = None
    num_opaque_objects_saved_for_bw: Int | None = None
    bw_donated_idxs: tuple[Int, ...] | None = None
    mutated_graph_handled_indices_seen_by_autograd: tuple[Int, ...] = ()
    num_tensors_saved_with_no_vc_check: Int | None = None
    saved_tensor_is_graph_input: tuple[bool, ...] = ()
    dynamic_saved_tensors_idxs: tuple[tuple[Int, frozenset[Int]], ...] = ()
    static_input_indices: tuple[Int, ...] = ()
    subclass_tangent_meta: tuple[MemoryFormatMeta | None, ...] = ()
    tokens: Int = 0
    num_backward_tokens: Int = 0
    num_graphsafe_rng_states: Int = 0
    indices_of_inputs_that_requires_grad_with_mutations_in_bw: tuple[Int, ...] = ()
    grad_enabled_mutation: bool | None = None
    deterministic: bool | None = None
    unknown: tuple[str, ...] = ()

    def knows(self, *names: str) -> bool:
        """Tells whether these fields could be read, with all that is in them."""
        return not any(field.partition(".")[0] in names for field in self.unknown)

    @property
    def num_mutated_outputs(self) -> int:
        """Inputs that AOTAutograd mutates after the call; each is a graph output."""
        of = (i.mutation_type for i in self.input_info)
        return sum(kind is MutationType.MUTATED_OUT_GRAPH for kind in of)

    @property
    def num_forward_returns(self) -> int:
        """Values that the forward returns to autograd: mutated inputs, user outputs and bases."""
        return self.num_mutated_outputs + len(self.output_info) + self.num_intermediate_bases

    @property
    def num_forward(self) -> int:
        """Graph outputs before the first saved value."""
        return self.num_forward_returns + self.is_rng_op_functionalized

    @property
    def tangents(self) -> tuple[int, ...]:
        """Numbers of the values, among those that the forward returns, whose gradients its backward
        takes."""
        mutated = (i for i in self.input_info if i.mutation_type is MutationType.MUTATED_OUT_GRAPH)
        taken = [i.mutates_data and i.requires_grad for i in mutated]
        taken += [o.takes_gradient and not o.output_type.is_alias for o in self.output_info]
        taken += [True] * self.num_intermediate_bases
        return tuple(i for i, takes in enumerate(taken) if takes)

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

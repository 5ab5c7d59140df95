"""Everything AOTAutograd knows of views and mutations in one compiled forward.

Outputs of a compiled forward graph stand in this order::

    mutated inputs | user outputs | intermediate bases | rng offset |
    saved tensors (version checked) | saved tensors (unchecked) | opaque objects | symints
    └──────────── num_forward_returns ───────────┘
    └─────────────────── num_forward ───────────────────┘

and inputs of its backward::

    symints | saved tensors (checked, unchecked) | opaque objects | tangents | rng | BackwardState
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from .input_alias import InputAliasInfo, MutationType
from .output_alias import OutputAliasInfo, OutputType
from .sizes import Size
from .subclass import FlatLayout, SubclassCreationMeta, runtime_safe_layout


class MetadataNotReadyError(RuntimeError):
    """A fact was asked for that AOTAutograd only knows after partitioning."""


@dataclass(frozen=True)
class FlattenSpec:
    """What ``__tensor_flatten__`` of a subclass returned.

    Attributes:
        attrs: names of the inner tensors.
        context: ``repr`` of the other half.
    """

    attrs: tuple[str, ...]
    context: str


@dataclass(frozen=True)
class TracedTangent:
    """The tensor (or symbolic number) that a tangent was traced with.

    Attributes:
        type_name: qualified name of its type; a fake tensor's is ``torch.Tensor``.
        dtype, shape, device: of a tensor; None, () and None for a number.
        flatten: for a subclass, how it comes apart.
    """

    type_name: str
    dtype: str | None = None
    shape: tuple[Size, ...] = ()
    device: str | None = None
    flatten: FlattenSpec | None = None


@dataclass(frozen=True)
class InputPath:
    """An input, or an inner tensor of one.

    Attributes:
        index: of the input.
        attrs: attribute names that lead to the inner tensor; () for the input itself.
    """

    index: int
    attrs: tuple[str, ...] = ()


@dataclass(frozen=True)
class DynamicDims:
    """Symbolic dimensions of one saved tensor.

    Attributes:
        saved: its position among all saved values, from 0.
        dims: ascending.
    """

    saved: int
    dims: tuple[int, ...]


_WHERE_SAVED_VALUES_ARE = (
    *("input_info", "output_info", "num_intermediate_bases", "is_rng_op_functionalized"),
    *("num_symints_saved_for_bw", "num_tensors_saved_with_no_vc_check"),
    "num_opaque_objects_saved_for_bw",
)


@dataclass(frozen=True, eq=False)
class ViewAndMutationMeta:
    """The view and mutation metadata of one compiled function.

    ``==`` is AOTAutograd's notion of equality: the same analysis of the same function.
    ``identical`` compares every field.

    Attributes:
        input_info: one entry an input.
        output_info: one entry a user output.
        num_intermediate_bases: bases that the graph returns for outputs that view them.
        keep_input_mutations: the compiler accepts writes to inputs in its graph.
        is_rng_op_functionalized: random operators take seed and offset as inputs.
        traced_tangents: what the tangents were traced with; empty in runtime-safe form.
        traced_tangents_descs: AOTAutograd's description of each.
        output_types: type that each must have at run time; stays in runtime-safe form.
        subclass_inp_meta: layout of each input.
        subclass_fw_graph_out_meta: layout of mutated inputs, user outputs and bases.
        subclass_tangent_meta: layout of each tangent.
        traced_tangent_metas: how each tangent comes apart, None for a dense one; None as
            a whole until ``runtime_safe`` fills it in.
        num_symints_saved_for_bw: symbolic integers among the forward's outputs for its
            backward. None until partitioned; so are the next two.
        num_tensors_saved_with_no_vc_check: saved tensors that a custom
            autograd.Function kept on ``ctx``, whose versions are not checked.
        num_opaque_objects_saved_for_bw: opaque objects among the saved values.
        saved_tensor_is_graph_input: for each saved tensor whether it is an input of the
            forward; torch 2.15 on, None before and until partitioned.
        dynamic_saved_tensors: saved tensors with symbolic sizes.
        grad_enabled_mutation: grad mode that the function leaves behind, if it sets it.
        deterministic: deterministic algorithms were on when the forward was traced.
        static_input_indices: inputs whose address stays: parameters and buffers.
        act_input_paths: inputs that held asynchronous collective tensors; torch 2.13 on
            (whole inputs only in 2.13), None before.
        tokens: names of the effect types that thread a token through the graph; for
            Inductor, AOTAutograd takes tokens out of the graph and of this list again.
        indices_of_inputs_that_requires_grad_with_mutations_in_bw: as named.
        bw_donated_idxs: backward inputs whose memory nobody else holds, so that the
            backward may overwrite it; None until partitioned.
        num_backward_tokens: tokens at the end of the backward's outputs.
        num_graphsafe_rng_states: generator states passed to forward and backward.
        graphsafe_rng_state_index: index of the device they belong to.
        graphsafe_rng_device: that device; torch 2.13 on.
        mutated_inp_stream_indices: stream on which each mutated input was last touched.
        compile_id: e.g. ``1/0``; torch 2.13 on.
        tangent_source_stack_traces: where each tangent's output was made; 2.13 on.
        is_train: a backward is compiled too; torch 2.11 only, None after.
        unknown: fields that torch has in another form than memprof knows, e.g.
            ``tokens`` or ``input_info.is_leaf``; above, they have a neutral value.
    """

    input_info: tuple[InputAliasInfo, ...]
    output_info: tuple[OutputAliasInfo, ...]
    num_intermediate_bases: int
    keep_input_mutations: bool
    is_rng_op_functionalized: bool = False
    traced_tangents: tuple[TracedTangent, ...] = ()
    traced_tangents_descs: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    subclass_inp_meta: tuple[FlatLayout, ...] = ()
    subclass_fw_graph_out_meta: tuple[FlatLayout, ...] = ()
    subclass_tangent_meta: tuple[FlatLayout, ...] = ()
    traced_tangent_metas: tuple[FlattenSpec | None, ...] | None = None
    num_symints_saved_for_bw: int | None = None
    num_tensors_saved_with_no_vc_check: int | None = None
    num_opaque_objects_saved_for_bw: int | None = None
    saved_tensor_is_graph_input: tuple[bool, ...] | None = None
    dynamic_saved_tensors: tuple[DynamicDims, ...] = ()
    grad_enabled_mutation: bool | None = None
    deterministic: bool | None = None
    static_input_indices: tuple[int, ...] = ()
    act_input_paths: tuple[InputPath, ...] | None = None
    tokens: tuple[str, ...] = ()
    indices_of_inputs_that_requires_grad_with_mutations_in_bw: tuple[int, ...] = ()
    bw_donated_idxs: tuple[int, ...] | None = None
    num_backward_tokens: int = 0
    num_graphsafe_rng_states: int = 0
    graphsafe_rng_state_index: int | None = None
    graphsafe_rng_device: str | None = None
    mutated_inp_stream_indices: tuple[int | None, ...] | None = None
    compile_id: str | None = None
    tangent_source_stack_traces: tuple[str | None, ...] | None = None
    is_train: bool | None = None
    unknown: tuple[str, ...] = ()

    def knows(self, *names: str) -> bool:
        """Whether these fields could be read, with all that is in them."""
        return not any(field.partition(".")[0] in names for field in self.unknown)

    # --- inputs -----------------------------------------------------------------

    @cached_property
    def mutated_inp_runtime_indices(self) -> tuple[int, ...]:
        """Inputs that AOTAutograd mutates after the call; each is a graph output."""
        return self._inputs_with(MutationType.MUTATED_OUT_GRAPH)

    @cached_property
    def mutated_graph_handled_indices(self) -> tuple[int, ...]:
        """Inputs that the graph itself writes."""
        return self._inputs_with(MutationType.MUTATED_IN_GRAPH)

    @cached_property
    def mutated_graph_handled_indices_seen_by_autograd(self) -> tuple[int, ...]:
        """Those of them whose version counter must move."""
        return tuple(
            i
            for i in self.mutated_graph_handled_indices
            if not self.input_info[i].mutations_hidden_from_autograd
        )

    @property
    def num_mutated_inp_runtime_indices(self) -> int:
        return len(self.mutated_inp_runtime_indices)

    @property
    def num_mutated_graph_handled_indices(self) -> int:
        return len(self.mutated_graph_handled_indices)

    @property
    def num_mutated_graph_handled_indices_seen_by_autograd(self) -> int:
        return len(self.mutated_graph_handled_indices_seen_by_autograd)

    def _inputs_with(self, mutation: MutationType) -> tuple[int, ...]:
        return tuple(i for i, info in enumerate(self.input_info) if info.mutation_type is mutation)

    # --- outputs ----------------------------------------------------------------

    @cached_property
    def aliased_out_indices(self) -> tuple[int, ...]:
        """User outputs that are made again from a base after the call."""
        return tuple(i for i, o in enumerate(self.output_info) if o.output_type.is_replayed)

    @cached_property
    def unsafe_view_out_indices(self) -> tuple[int, ...]:
        """User outputs of type ``unsafe_view_alias``."""
        return tuple(
            i
            for i, o in enumerate(self.output_info)
            if o.output_type is OutputType.UNSAFE_VIEW_ALIAS
        )

    @property
    def num_outputs(self) -> int:
        return len(self.output_info)

    @property
    def num_outputs_aliased(self) -> int:
        return len(self.aliased_out_indices)

    @property
    def num_outputs_non_aliased(self) -> int:
        return self.num_outputs - self.num_outputs_aliased

    @cached_property
    def num_outputs_aliased_to_inputs(self) -> int:
        return sum(o.output_type.aliases_input for o in self.output_info)

    @cached_property
    def num_outputs_aliased_to_intermediates(self) -> int:
        return sum(o.output_type.aliases_intermediate for o in self.output_info)

    @property
    def num_unsafe_view_outputs(self) -> int:
        return len(self.unsafe_view_out_indices)

    @cached_property
    def dynamic_outputs(self) -> bool:
        """Whether some user output has a symbolic size."""
        return any(o.dynamic_dims for o in self.output_info)

    @property
    def act_input_indices(self) -> tuple[int, ...] | None:
        """Inputs that themselves held asynchronous collective tensors."""
        if self.act_input_paths is None:
            return None
        return tuple(p.index for p in self.act_input_paths if not p.attrs)

    # --- the forward graph's outputs --------------------------------------------

    @property
    def num_outputs_rng_offset(self) -> int:
        return int(self.is_rng_op_functionalized)

    @property
    def num_forward_returns(self) -> int:
        """Graph outputs that the autograd.Function returns."""
        return self.num_mutated_inp_runtime_indices + self.num_outputs + self.num_intermediate_bases

    @property
    def num_forward(self) -> int:
        """Graph outputs before the first saved value."""
        return self.num_forward_returns + self.num_outputs_rng_offset

    @property
    def is_partitioned(self) -> bool:
        """Whether it is known what the forward saves for its backward."""
        return self.num_symints_saved_for_bw is not None and self.knows(*_WHERE_SAVED_VALUES_ARE)

    @property
    def tensors_saved_for_backwards_slice(self) -> slice:
        """Forward outputs that are tensors for the backward."""
        checked = self.tensors_saved_for_backwards_with_vc_check_slice
        return slice(checked.start, _from_end(self._saved_opaque + self._saved_symints))

    @property
    def tensors_saved_for_backwards_with_vc_check_slice(self) -> slice:
        """Those whose version counter is checked when the backward runs."""
        trailing = self._saved_unchecked + self._saved_opaque + self._saved_symints
        return slice(self.num_forward, _from_end(trailing))

    @property
    def tensors_saved_for_backwards_no_vc_check_slice(self) -> slice:
        """Those whose version counter is not."""
        return _tail(self._saved_unchecked, self._saved_opaque + self._saved_symints)

    @property
    def opaque_objects_saved_for_backwards_slice(self) -> slice:
        """Forward outputs that are opaque objects for the backward."""
        return _tail(self.num_opaque_objects_saved_for_bw or 0, self.num_symints_saved_for_bw or 0)

    @property
    def symints_saved_for_backwards_slice(self) -> slice:
        """Forward outputs that are symbolic integers for the backward."""
        return _tail(self._saved_symints, 0)

    @property
    def _saved_symints(self) -> int:
        return _known("num_symints_saved_for_bw", self.num_symints_saved_for_bw)

    @property
    def _saved_unchecked(self) -> int:
        return _known("num_tensors_saved_with_no_vc_check", self.num_tensors_saved_with_no_vc_check)

    @property
    def _saved_opaque(self) -> int:
        return self.num_opaque_objects_saved_for_bw or 0

    # --- as a whole -------------------------------------------------------------

    def runtime_safe(self) -> ViewAndMutationMeta:
        """The same without what is only meaningful while compiling.

        Traced tangents shrink to how they come apart, symbolic sizes of subclasses to
        None, and view sequences with symbolic steps go: nothing can replay them.
        Applied to itself it changes nothing.
        """
        if self.traced_tangent_metas is not None:
            return self
        return replace(
            self,
            traced_tangents=(),
            traced_tangent_metas=tuple(t.flatten for t in self.traced_tangents),
            subclass_inp_meta=tuple(map(runtime_safe_layout, self.subclass_inp_meta)),
            subclass_fw_graph_out_meta=tuple(
                map(runtime_safe_layout, self.subclass_fw_graph_out_meta)
            ),
            subclass_tangent_meta=tuple(map(runtime_safe_layout, self.subclass_tangent_meta)),
            output_info=tuple(
                replace(o, view_sequence=None)
                if o.view_sequence is not None and o.view_sequence.symbolic
                else o
                for o in self.output_info
            ),
        )

    @property
    def has_subclasses(self) -> bool:
        """Whether any input, output or tangent is a tensor subclass."""
        return any(
            isinstance(layout, SubclassCreationMeta)
            for layouts in (
                self.subclass_inp_meta,
                self.subclass_fw_graph_out_meta,
                self.subclass_tangent_meta,
            )
            for layout in layouts
        )

    def identical(self, other: ViewAndMutationMeta) -> bool:
        """Whether every field is equal."""
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ViewAndMutationMeta):
            return NotImplemented
        return self._analysis() == other._analysis()

    def __hash__(self) -> int:
        return hash(self._analysis())

    def _analysis(self) -> tuple[object, ...]:
        return (
            self.input_info,
            self.output_info,
            self.num_intermediate_bases,
            self.keep_input_mutations,
            self.is_rng_op_functionalized,
            tuple((t.shape, t.dtype) for t in self.traced_tangents),
            self.num_backward_tokens,
        )


@dataclass(frozen=True)
class SubclassMeta:
    """Metadata of a function with subclass inputs or outputs.

    Attributes:
        fw_metadata: of the forward on dense tensors; one input info for each dense tensor.
        grad_input_metas: how gradients of the inputs are put together; None without a
            backward. Not the layouts of the inputs: a dense input may get a subclass
            gradient.
    """

    fw_metadata: ViewAndMutationMeta
    grad_input_metas: tuple[FlatLayout, ...] | None = None


def _known(name: str, value: int | None) -> int:
    if value is None:
        raise MetadataNotReadyError(
            f"{name} is unknown: the joint graph has not been partitioned, or there is no backward"
        )
    return value


def _from_end(count: int) -> int | None:
    """End of a slice that leaves ``count`` elements out."""
    return -count if count else None


def _tail(count: int, after: int) -> slice:
    """The ``count`` elements that are followed by ``after`` more; empty for none."""
    return slice(-count - after, _from_end(after)) if count else slice(0, 0)

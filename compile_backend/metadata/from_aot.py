"""Copies of AOTAutograd's objects. The only module here that reads them.

Note [When metadata is copied]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inside the inner compile, before Inductor runs: AOTAutograd strips tangents and symbolic
sizes from its metadata right after, and Inductor rewrites the graph in place. Fields that
a torch version does not have become None or empty; each class says which.

Note [Which inputs metadata counts]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The metadata that the tracing context offers describes the function *as it was traced*:
duplicate arguments removed, overlapping ones replaced by a base, tensor subclasses taken
apart into dense tensors. Its ``input_info[i]`` and every ``base_idx`` of an input thus
count the forward graph's inputs (tokens and random-number inputs aside), not the
arguments of the user's function. Dynamo's arguments are found through descriptors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from memprof.compile_backend import _torch_compat as compat

from .compile_config import CompileConfig
from .descriptor import Descriptor, DescriptorKind
from .input_alias import InputAliasInfo
from .memory_format import MemoryFormatMeta
from .output_alias import OutputAliasInfo, OutputType, ViewSequence
from .sizes import Size, SymbolicSize
from .subclass import (
    FlatLayout,
    OpaqueMeta,
    PlainTensorMeta,
    SubclassBinding,
    SubclassCreationMeta,
)
from .view_and_mutation import (
    DynamicDims,
    FlattenSpec,
    InputPath,
    SubclassMeta,
    TracedTangent,
    ViewAndMutationMeta,
)


class UnknownMetadataError(TypeError):
    """AOTAutograd handed over an object that this version of memprof does not know."""


def view_and_mutation_meta(meta: Any) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Raises:
        UnknownMetadataError: it holds a layout or an output type unknown here.
    """
    flattened = meta.traced_tangent_metas  # only filled in once stripped
    return ViewAndMutationMeta(
        input_info=tuple(map(input_alias_info, meta.input_info)),
        output_info=tuple(map(output_alias_info, meta.output_info)),
        num_intermediate_bases=meta.num_intermediate_bases,
        keep_input_mutations=meta.keep_input_mutations,
        is_rng_op_functionalized=meta.is_rng_op_functionalized,
        traced_tangents=tuple(map(_tangent, meta.traced_tangents)),
        traced_tangents_descs=tuple(d.expr() for d in meta.traced_tangents_descs),
        output_types=tuple(map(qualified_name, meta.output_types)),
        subclass_inp_meta=_layouts(meta.subclass_inp_meta),
        subclass_fw_graph_out_meta=_layouts(meta.subclass_fw_graph_out_meta),
        subclass_tangent_meta=_layouts(meta.subclass_tangent_meta),
        traced_tangent_metas=(
            None if flattened is None else tuple(_flatten_spec(spec) for spec in flattened)
        ),
        num_symints_saved_for_bw=meta.num_symints_saved_for_bw,
        num_tensors_saved_with_no_vc_check=meta.num_tensors_saved_with_no_vc_check,
        num_opaque_objects_saved_for_bw=meta.num_opaque_objects_saved_for_bw,
        saved_tensor_is_graph_input=_saved_inputs(meta),
        dynamic_saved_tensors=tuple(
            DynamicDims(saved, tuple(sorted(dims)))
            for saved, dims in sorted(meta.dynamic_saved_tensors_idxs.items())
        ),
        grad_enabled_mutation=meta.grad_enabled_mutation,
        deterministic=meta.deterministic,
        static_input_indices=tuple(meta.static_input_indices),
        act_input_paths=_async_inputs(meta),
        tokens=tuple(str(getattr(effect, "name", effect)) for effect in meta.tokens),
        indices_of_inputs_that_requires_grad_with_mutations_in_bw=tuple(
            meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        ),
        bw_donated_idxs=_optional_tuple(meta.bw_donated_idxs),
        num_backward_tokens=meta.num_backward_tokens,
        num_graphsafe_rng_states=meta.num_graphsafe_rng_states,
        graphsafe_rng_state_index=meta.graphsafe_rng_state_index,
        graphsafe_rng_device=_optional_text(getattr(meta, "graphsafe_rng_device", None)),
        mutated_inp_stream_indices=_optional_tuple(meta.mutated_inp_stream_indices),
        compile_id=getattr(meta, "compile_id_str", None),
        tangent_source_stack_traces=_optional_tuple(
            getattr(meta, "tangent_source_stack_traces", None)
        ),
        is_train=getattr(meta, "is_train", None),
    )


def input_alias_info(info: Any) -> InputAliasInfo:
    """Copy of an ``InputAliasInfo``."""
    return InputAliasInfo(
        is_leaf=info.is_leaf,
        mutates_data=info.mutates_data,
        mutates_metadata=info.mutates_metadata,
        mutations_hidden_from_autograd=info.mutations_hidden_from_autograd,
        mutations_under_no_grad_or_inference_mode=info.mutations_under_no_grad_or_inference_mode,
        mutation_inductor_storage_resize=info.mutation_inductor_storage_resize,
        mutates_storage_metadata=info.mutates_storage_metadata,
        requires_grad=info.requires_grad,
        keep_input_mutations=info.keep_input_mutations,
        mutation_is_shallow_copy_data=getattr(info, "mutation_is_shallow_copy_data", None),
    )


def output_alias_info(info: Any) -> OutputAliasInfo:
    """Copy of an ``OutputAliasInfo``."""
    try:
        output_type = OutputType(info.output_type.name)
    except ValueError as e:
        raise UnknownMetadataError(f"unknown output type {info.output_type}") from e
    views = info.view_meta_sequence
    dims = info.dynamic_dims
    return OutputAliasInfo(
        output_type=output_type,
        raw_type=qualified_name(info.raw_type),
        base_idx=info.base_idx,
        dynamic_dims=None if dims is None else tuple(sorted(dims)),
        requires_grad=info.requires_grad,
        requires_grad_for_backward=getattr(info, "requires_grad_for_backward", None),
        view_sequence=None if views is None else _view_sequence(views),
    )


def subclass_meta(meta: Any) -> SubclassMeta:
    """Copy of a ``SubclassMeta``."""
    grads = getattr(meta, "grad_input_metas", None)
    return SubclassMeta(
        fw_metadata=view_and_mutation_meta(meta.fw_metadata),
        grad_input_metas=None if grads is None else _layouts(grads),
    )


def layout(meta: Any) -> FlatLayout:
    """Copy of a ``PlainTensorMeta``, ``SubclassCreationMeta`` or ``OpaqueMeta``.

    Raises:
        UnknownMetadataError: it is none of them.
    """
    kind = type(meta).__name__
    if kind == "PlainTensorMeta":
        return PlainTensorMeta(
            unwrapped_idx=meta.unwrapped_idx,
            memory_format=_memory_format(meta.memory_format),
            size_symbol_placeholders=tuple(getattr(meta, "size_symbol_placeholders", ())),
            stride_symbol_placeholders=tuple(getattr(meta, "stride_symbol_placeholders", ())),
        )
    if kind == "OpaqueMeta":
        return OpaqueMeta()
    if kind != "SubclassCreationMeta":
        raise UnknownMetadataError(f"unknown layout {kind}")
    original = meta.original_subclass
    subclass_type = meta.original_subclass_type if original is None else type(original)
    return SubclassCreationMeta(
        flat_tensor_start_idx=meta.flat_tensor_start_idx,
        flat_arg_count=meta.arg_count,
        included_subclass_symints=meta.included_subclass_symints,
        attrs=tuple((name, layout(inner)) for name, inner in meta.attrs.items()),
        outer_size=sizes(meta.outer_size),
        outer_stride=sizes(meta.outer_stride),
        type_name=qualified_name(subclass_type),
        context=repr(meta.meta),
        context_is_portable=meta.meta is None,
        memory_format=_memory_format(meta.memory_format),
        outer_size_from_attr=getattr(meta, "outer_size_from_attr", None),
        outer_stride_from_attr=getattr(meta, "outer_stride_from_attr", None),
        binding=SubclassBinding(subclass_type, meta.meta),
    )


def compile_config(config: Any) -> CompileConfig:
    """The storable part of an ``AOTConfig``."""
    sources = config.aot_autograd_arg_pos_to_source
    return CompileConfig(
        aot_id=config.aot_id,
        num_params_buffers=config.num_params_buffers,
        keep_inference_input_mutations=config.keep_inference_input_mutations,
        is_export=config.is_export,
        no_tangents=config.no_tangents,
        dynamic_shapes=config.dynamic_shapes,
        arg_sources=(
            None if sources is None else tuple(compat.source_text(s) or None for s in sources)
        ),
        static_input_indices=_optional_tuple(config.static_input_indices),
        enable_log=config.enable_log,
        pre_dispatch=config.pre_dispatch,
        precompile_backend_id=config.precompile_backend_id,
    )


_K = DescriptorKind
_DESCRIPTOR_KINDS: Mapping[str, DescriptorKind] = {
    "PlainAOTInput": _K.PLAIN_INPUT,
    "ParamAOTInput": _K.PARAMETER,
    "BufferAOTInput": _K.BUFFER,
    "ViewBaseAOTInput": _K.VIEW_BASE,
    "SyntheticBaseAOTInput": _K.SYNTHETIC_BASE,
    "TangentAOTInput": _K.TANGENT,
    "SubclassGetAttrAOTInput": _K.SUBCLASS_ATTRIBUTE,
    "SubclassSizeAOTInput": _K.SUBCLASS_SIZE,
    "SubclassStrideAOTInput": _K.SUBCLASS_STRIDE,
    "PhiloxForwardSeedAOTInput": _K.RNG,
    "PhiloxForwardBaseOffsetAOTInput": _K.RNG,
    "PhiloxBackwardSeedAOTInput": _K.RNG,
    "PhiloxBackwardBaseOffsetAOTInput": _K.RNG,
    "ForwardTokenAOTInput": _K.TOKEN,
    "BackwardTokenAOTInput": _K.TOKEN,
    "DummyAOTInput": _K.DUMMY,
    "PlainAOTOutput": _K.PLAIN_OUTPUT,
    "InputMutationAOTOutput": _K.INPUT_MUTATION,
    "MetadataMutationAOTOutput": _K.METADATA_MUTATION,
    "IntermediateBaseAOTOutput": _K.INTERMEDIATE_BASE,
    "GradAOTOutput": _K.GRADIENT,
    "SubclassGetAttrAOTOutput": _K.SUBCLASS_ATTRIBUTE,
    "SubclassSizeAOTOutput": _K.SUBCLASS_SIZE,
    "SubclassStrideAOTOutput": _K.SUBCLASS_STRIDE,
    "PhiloxUpdatedForwardOffsetAOTOutput": _K.RNG,
    "PhiloxUpdatedBackwardOffsetAOTOutput": _K.RNG,
    "ForwardTokenAOTOutput": _K.TOKEN,
    "BackwardTokenAOTOutput": _K.TOKEN,
    "DummyAOTOutput": _K.DUMMY,
    "SavedForBackwardsAOTOutput": _K.SAVED_FOR_BACKWARD,
    "SavedForBackwardsNoVcCheckAOTOutput": _K.SAVED_FOR_BACKWARD_NO_VC_CHECK,
}
_OF = ("base", "base_of", "output", "mutated_input", "grad_of")


def descriptor(desc: Any) -> Descriptor | None:
    """Copy of an ``AOTInput`` or ``AOTOutput``; None for None and for unknown kinds."""
    kind = _DESCRIPTOR_KINDS.get(type(desc).__name__)
    if kind is None:
        return None
    of = next((getattr(desc, name) for name in _OF if hasattr(desc, name)), None)
    return Descriptor(
        kind=kind,
        text=desc.expr(),
        index=getattr(desc, "idx", None),
        target=getattr(desc, "target", getattr(desc, "attr", None)),
        of=descriptor(of),
    )


def sizes(values: Iterable[Any]) -> tuple[Size, ...]:
    """Sizes or strides; symbolic ones by their expression."""
    return tuple(map(_size, values))


def qualified_name(type_: type) -> str:
    """Dotted path of a type, as ``import`` would find it."""
    return f"{type_.__module__}.{type_.__qualname__}"


def _size(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return SymbolicSize(str(value), compat.is_nested_size(value))
    return value


def _layouts(metas: Iterable[Any]) -> tuple[FlatLayout, ...]:
    return tuple(map(layout, metas))


def _memory_format(meta: Any) -> MemoryFormatMeta | None:
    if meta is None:
        return None
    return MemoryFormatMeta(
        size=None if meta.size is None else sizes(meta.size),
        stride=None if meta.stride is None else sizes(meta.stride),
        memory_format=_optional_text(meta.memory_format),
    )


def _view_sequence(views: Any) -> ViewSequence:
    where = views.metadata

    def place(wrapped: Any) -> int | SymbolicSize:
        # torch wraps each number in SymIntEqByExpr, which compares by expression; so do we.
        try:
            return int(wrapped.val)
        except TypeError:
            return SymbolicSize(str(wrapped.val))

    return ViewSequence(
        steps=tuple(type(step).__name__.removesuffix("_ViewMeta") for step in views.sequence),
        symbolic=any(step.has_symbolic_inputs for step in views.sequence),
        size=tuple(map(place, where.size)),
        stride=None if where.stride is None else tuple(map(place, where.stride)),
        storage_offset=None if where.storage_offset is None else place(where.storage_offset),
        layout=str(where.layout),
        is_conj=where.is_conj,
        is_neg=where.is_neg,
    )


def _tangent(tangent: Any) -> TracedTangent:
    if not isinstance(tangent, torch.Tensor):
        return TracedTangent(type_name=qualified_name(type(tangent)))
    is_subclass = compat.is_wrapper_subclass(tangent)
    return TracedTangent(
        # Fake tensors stand for plain ones.
        type_name=qualified_name(type(tangent) if is_subclass else torch.Tensor),
        dtype=str(tangent.dtype),
        shape=sizes(tangent.shape),
        device=str(tangent.device),
        flatten=_flatten_spec(tangent.__tensor_flatten__()) if is_subclass else None,  # type: ignore[attr-defined]
    )


def _flatten_spec(spec: Any) -> FlattenSpec | None:
    return None if spec is None else FlattenSpec(tuple(spec[0]), repr(spec[1]))


def _saved_inputs(meta: Any) -> tuple[bool, ...] | None:
    if not hasattr(meta, "saved_tensor_is_graph_input") or meta.num_symints_saved_for_bw is None:
        return None
    return tuple(meta.saved_tensor_is_graph_input)


def _async_inputs(meta: Any) -> tuple[InputPath, ...] | None:
    if hasattr(meta, "act_input_paths"):
        return tuple(InputPath(index, tuple(attrs)) for index, attrs in meta.act_input_paths)
    if hasattr(meta, "act_input_indices"):
        return tuple(map(InputPath, meta.act_input_indices))
    return None


def _optional_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)

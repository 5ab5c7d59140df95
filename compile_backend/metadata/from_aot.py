"""Copies of AOTAutograd's objects. The only module here that reads them.

Note [When metadata is copied]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inside the inner compile, before Inductor runs: AOTAutograd strips tangents and symbolic
sizes from its metadata right after, and Inductor rewrites the graph in place. Fields that
a torch version does not have become None or empty; each class says which.

Note [Fields that cannot be read]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
These are private objects of torch, and a torch that nobody has tried with memprof may name or
fill a field in another way. That costs the field and nothing else: it is left at a neutral value,
named in ``ViewAndMutationMeta.unknown``, and whoever asks for something that follows
from it finds that out (``knows``) and does without. ``tell`` hears of each.

Note [Which inputs metadata counts]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The metadata that the tracing context offers describes the function *as it was traced*:
duplicate arguments removed, overlapping ones replaced by a base, tensor subclasses taken
apart into dense tensors. Its ``input_info[i]`` and every ``base_idx`` of an input thus
count the forward graph's inputs (tokens and random-number inputs aside), not the
arguments of the user's function. Dynamo's arguments are found through descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

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

T = TypeVar("T")


class UnknownMetadataError(TypeError):
    """AOTAutograd handed over an object that this version of memprof does not know."""


Tell = Callable[[str, Exception], None]
"""Hears of a field that cannot be read, as ``owner.field``, and why."""


class _Reader:
    """Reads fields of one object of torch.

    Args:
        owner: what a field's name begins with in what is told.
        source: the object.
        tell: see ``Tell``; None raises the error instead.
    """

    def __init__(self, owner: str, source: Any, tell: Tell | None) -> None:
        self._owner = owner
        self._source = source
        self._tell = tell

    def __call__(self, name: str, neutral: T, convert: Callable[[Any], T] = lambda v: v) -> T:
        """``convert`` of the field ``name``; ``neutral`` where that cannot be had."""
        try:
            return convert(getattr(self._source, name))
        except Exception as error:
            if self._tell is None:
                raise
            self._tell(f"{self._owner}{name}", error)
            return neutral

    def since(self, version: str, name: str, convert: Callable[[Any], Any] = lambda v: v) -> Any:
        """The same of a field that torch has from ``version`` on; None before."""
        return self(name, None, convert) if compat.torch_is(version) else None


def view_and_mutation_meta(meta: Any, tell: Tell | None = None) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's.
        tell: hears of fields that cannot be read (Note [Fields that cannot be read]).

    Raises:
        UnknownMetadataError: it holds a layout or an output type unknown here, and nobody
            is told.
    """
    unknown: dict[str, None] = {}

    def told(field: str, error: Exception) -> None:
        assert tell is not None
        if field not in unknown:
            unknown[field] = None
            tell(f"ViewAndMutationMeta.{field}", error)

    tell_field = None if tell is None else told
    read = _Reader("", meta, tell_field)

    no_inputs: tuple[InputAliasInfo, ...] = ()
    no_outputs: tuple[OutputAliasInfo, ...] = ()
    inputs = read(
        "input_info", no_inputs, lambda v: tuple(input_alias_info(i, tell_field) for i in v)
    )
    outputs = read(
        "output_info", no_outputs, lambda v: tuple(output_alias_info(i, tell_field) for i in v)
    )
    return ViewAndMutationMeta(
        input_info=inputs,
        output_info=outputs,
        num_intermediate_bases=read("num_intermediate_bases", 0),
        keep_input_mutations=read("keep_input_mutations", False),
        is_rng_op_functionalized=read("is_rng_op_functionalized", False),
        traced_tangents=read("traced_tangents", (), lambda v: tuple(map(_tangent, v))),
        traced_tangents_descs=read(
            "traced_tangents_descs", (), lambda v: tuple(d.expr() for d in v)
        ),
        output_types=read("output_types", (), lambda v: tuple(map(qualified_name, v))),
        subclass_inp_meta=read("subclass_inp_meta", (), _layouts),
        subclass_fw_graph_out_meta=read("subclass_fw_graph_out_meta", (), _layouts),
        subclass_tangent_meta=read("subclass_tangent_meta", (), _layouts),
        # Only filled in once stripped.
        traced_tangent_metas=read("traced_tangent_metas", None, _flatten_specs),
        num_symints_saved_for_bw=read("num_symints_saved_for_bw", None),
        num_tensors_saved_with_no_vc_check=read("num_tensors_saved_with_no_vc_check", None),
        num_opaque_objects_saved_for_bw=read("num_opaque_objects_saved_for_bw", None),
        saved_tensor_is_graph_input=_saved_inputs(meta, read),
        dynamic_saved_tensors=read("dynamic_saved_tensors_idxs", (), _dynamic_dims),
        grad_enabled_mutation=read("grad_enabled_mutation", None),
        deterministic=read("deterministic", None),
        static_input_indices=read("static_input_indices", (), tuple),
        act_input_paths=_async_inputs(read),
        tokens=read("tokens", (), lambda v: tuple(str(getattr(e, "name", e)) for e in v)),
        indices_of_inputs_that_requires_grad_with_mutations_in_bw=read(
            "indices_of_inputs_that_requires_grad_with_mutations_in_bw", (), tuple
        ),
        bw_donated_idxs=read("bw_donated_idxs", None, _optional_tuple),
        num_backward_tokens=read("num_backward_tokens", 0),
        num_graphsafe_rng_states=read("num_graphsafe_rng_states", 0),
        graphsafe_rng_state_index=read("graphsafe_rng_state_index", None),
        graphsafe_rng_device=read.since("2.13", "graphsafe_rng_device", _optional_text),
        mutated_inp_stream_indices=read("mutated_inp_stream_indices", None, _optional_tuple),
        compile_id=read.since("2.13", "compile_id_str"),
        tangent_source_stack_traces=read.since(
            "2.13", "tangent_source_stack_traces", _optional_tuple
        ),
        is_train=getattr(meta, "is_train", None),
        unknown=tuple(unknown),
    )


def input_alias_info(info: Any, tell: Tell | None = None) -> InputAliasInfo:
    """Copy of an ``InputAliasInfo``."""
    read = _Reader("input_info.", info, tell)
    return InputAliasInfo(
        is_leaf=read("is_leaf", False),
        mutates_data=read("mutates_data", False),
        mutates_metadata=read("mutates_metadata", False),
        mutations_hidden_from_autograd=read("mutations_hidden_from_autograd", False),
        mutations_under_no_grad_or_inference_mode=read(
            "mutations_under_no_grad_or_inference_mode", False
        ),
        mutation_inductor_storage_resize=read("mutation_inductor_storage_resize", False),
        mutates_storage_metadata=read("mutates_storage_metadata", False),
        requires_grad=read("requires_grad", False),
        keep_input_mutations=read("keep_input_mutations", False),
        mutation_is_shallow_copy_data=read.since("2.15", "mutation_is_shallow_copy_data"),
    )


def output_alias_info(info: Any, tell: Tell | None = None) -> OutputAliasInfo:
    """Copy of an ``OutputAliasInfo``."""
    read = _Reader("output_info.", info, tell)
    return OutputAliasInfo(
        output_type=read("output_type", OutputType.NON_ALIAS, _output_type),
        raw_type=read("raw_type", "", qualified_name),
        base_idx=read("base_idx", None),
        dynamic_dims=read("dynamic_dims", None, lambda v: None if v is None else tuple(sorted(v))),
        requires_grad=read("requires_grad", False),
        requires_grad_for_backward=read.since("2.13", "requires_grad_for_backward"),
        view_sequence=read(
            "view_meta_sequence", None, lambda v: None if v is None else _view_sequence(v)
        ),
    )


def _output_type(output_type: Any) -> OutputType:
    try:
        return OutputType(output_type.name)
    except ValueError as e:
        raise UnknownMetadataError(f"unknown output type {output_type}") from e


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


def _flatten_specs(specs: Any) -> tuple[FlattenSpec | None, ...] | None:
    return None if specs is None else tuple(map(_flatten_spec, specs))


def _dynamic_dims(saved: Any) -> tuple[DynamicDims, ...]:
    return tuple(DynamicDims(index, tuple(sorted(dims))) for index, dims in sorted(saved.items()))


def _flatten_spec(spec: Any) -> FlattenSpec | None:
    return None if spec is None else FlattenSpec(tuple(spec[0]), repr(spec[1]))


def _saved_inputs(meta: Any, read: _Reader) -> tuple[bool, ...] | None:
    if getattr(meta, "num_symints_saved_for_bw", None) is None:  # not partitioned
        return None
    found: tuple[bool, ...] | None = read.since(
        "2.15", "saved_tensor_is_graph_input", _optional_tuple
    )
    return found


def _async_inputs(read: _Reader) -> tuple[InputPath, ...] | None:
    found: tuple[InputPath, ...] | None
    if compat.torch_is("2.15"):
        found = read(
            "act_input_paths", None, lambda v: tuple(InputPath(i, tuple(attrs)) for i, attrs in v)
        )
    else:
        found = read.since("2.13", "act_input_indices", lambda v: tuple(map(InputPath, v)))
    return found


def _optional_tuple(values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)

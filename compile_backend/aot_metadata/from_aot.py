"""Copies of AOTAutograd's objects. The only module that reads them.

Note [When metadata is copied]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inside the inner compile, before Inductor runs: AOTAutograd strips its metadata right after, and
Inductor rewrites the graph in place.

Note [Fields that cannot be read]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
These are private objects of torch, and a torch that nobody has tried with memprof may name or
fill a field in another way. That costs the field and nothing else: it is left at a neutral value,
named in ``ViewAndMutationMeta.unknown``, and whoever asks for something that follows
from it finds that out (``knows``) and does without. ``tell`` hears of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from .subclass import IGNORED_SIZE, InnerValue, Sizes, SubclassLayout
from .view_and_mutation import (
    MutationType,
    OutputAliasInfo,
    OutputType,
    TangentFormat,
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

    def __call__(
        self,
        name: str,
        neutral: T,
        convert: Callable[[Any], T] = lambda v: v,
        *,
        optional: bool = False,
    ) -> T:
        """``convert`` of the field ``name``; ``neutral`` where that cannot be had, of which nobody
        is told if it is ``optional`` and this torch has no such field."""
        if optional and not hasattr(self._source, name):
            return neutral
        try:
            return convert(getattr(self._source, name))
        except Exception as error:
            if self._tell is None:
                raise
            self._tell(f"{self._owner}{name}", error)
            return neutral


def view_and_mutation_meta(meta: Any, tell: Tell | None = None) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's.
        tell: hears of fields that cannot be read (Note [Fields that cannot be read]); without it
            what ``getattr`` or a conversion raises goes to the caller.
    """
    unknown: dict[str, None] = {}

    def told(field: str, error: Exception) -> None:
        assert tell is not None
        if field not in unknown:
            unknown[field] = None
            tell(f"ViewAndMutationMeta.{field}", error)

    tell_field = None if tell is None else told
    read = _Reader("", meta, tell_field)

    def mutations(infos: Any) -> tuple[MutationType, ...]:
        return tuple(_mutation(_Reader("input_info.", i, tell_field)) for i in infos)

    def outputs(infos: Any) -> tuple[OutputAliasInfo, ...]:
        return tuple(_output(_Reader("output_info.", i, tell_field)) for i in infos)

    no_inputs: tuple[MutationType, ...] = ()
    no_outputs: tuple[OutputAliasInfo, ...] = ()
    no_tangents: tuple[TangentFormat | None, ...] = ()
    no_dims: tuple[tuple[int, frozenset[int]], ...] = ()
    none: tuple[int, ...] = ()
    no_flags: tuple[bool, ...] = ()
    return ViewAndMutationMeta(
        input_info=read("input_info", no_inputs, mutations),
        output_info=read("output_info", no_outputs, outputs),
        num_intermediate_bases=read("num_intermediate_bases", 0),
        is_rng_op_functionalized=read("is_rng_op_functionalized", False),
        num_symints_saved_for_bw=read("num_symints_saved_for_bw", None),
        num_opaque_objects_saved_for_bw=read("num_opaque_objects_saved_for_bw", None),
        bw_donated_idxs=read("bw_donated_idxs", None, lambda v: None if v is None else tuple(v)),
        mutated_graph_handled_indices_seen_by_autograd=read(
            "mutated_graph_handled_indices_seen_by_autograd", none, tuple
        ),
        num_tensors_saved_with_no_vc_check=read("num_tensors_saved_with_no_vc_check", None),
        saved_tensor_is_graph_input=read(
            "saved_tensor_is_graph_input", no_flags, tuple, optional=True
        ),
        dynamic_saved_tensors_idxs=read("dynamic_saved_tensors_idxs", no_dims, _dynamic),
        subclass_tangent_meta=read(
            "subclass_tangent_meta", no_tangents, lambda v: tuple(map(_tangent, v))
        ),
        tokens=read("tokens", 0, len),
        num_backward_tokens=read("num_backward_tokens", 0),
        num_graphsafe_rng_states=read("num_graphsafe_rng_states", 0),
        indices_of_inputs_that_requires_grad_with_mutations_in_bw=read(
            "indices_of_inputs_that_requires_grad_with_mutations_in_bw", none, tuple
        ),
        grad_enabled_mutation=read("grad_enabled_mutation", None),
        deterministic=read("deterministic", None),
        unknown=tuple(unknown),
    )


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


def _dynamic(saved: dict[int, Iterable[int]]) -> tuple[tuple[int, frozenset[int]], ...]:
    return tuple((i, frozenset(dims)) for i, dims in saved.items())


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


def subclass_layout(meta: Any) -> SubclassLayout:
    """Copy of a ``SubclassCreationMeta``.

    Raises:
        UnknownMetadataError: something inside of it is neither tensor nor opaque object.
    """
    original = meta.original_subclass
    return SubclassLayout(
        subclass=meta.original_subclass_type if original is None else type(original),
        context=meta.meta,
        start=meta.flat_tensor_start_idx,
        arg_count=meta.arg_count,
        attrs=tuple((name, _inner(inner)) for name, inner in meta.attrs.items()),
        outer_size=_sizes(meta.outer_size),
        outer_stride=_sizes(meta.outer_stride),
        outer_size_from=getattr(meta, "outer_size_from_attr", None),
        outer_stride_from=getattr(meta, "outer_stride_from_attr", None),
    )


def _inner(meta: Any) -> SubclassLayout | InnerValue:
    kind = type(meta).__name__
    if kind == "SubclassCreationMeta":
        return subclass_layout(meta)
    if kind == "PlainTensorMeta":
        symbolic = (
            *getattr(meta, "size_symbol_placeholders", ()),
            *getattr(meta, "stride_symbol_placeholders", ()),
        )
        return InnerValue(1 + sum(symbolic))
    if kind == "OpaqueMeta":  # torch 2.13 on
        return InnerValue(is_tensor=False)
    raise UnknownMetadataError(f"unknown layout {kind}")


def _sizes(values: Iterable[Any]) -> Sizes:
    return tuple(map(_size, values))


def _size(value: Any) -> int | None:
    if isinstance(value, torch.SymInt):
        return IGNORED_SIZE if value.node.is_nested_int() else None
    size: int | None = value
    return size

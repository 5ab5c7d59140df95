"""Copies of AOTAutograd's objects. The only module that reads them.

Note [When metadata is copied]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inside the inner compile, before Inductor runs: AOTAutograd strips its metadata right after, and
Inductor rewrites the graph in place.

Note [Fields that cannot be read]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
These are private objects of torch, and a torch that nobody has tried with memprof may name or
fill a field in another way. That costs the field and nothing else: it is left at its default, named
in ``ViewAndMutationMeta.unknown``, and whoever asks for something that follows
from it finds that out (``knows``) and does without. ``tell`` hears of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from .view_and_mutation import (
    MutationType,
    OutputAliasInfo,
    OutputType,
    TangentFormat,
    ViewAndMutationMeta,
)

T = TypeVar("T")


Tell = Callable[[str, Exception], None]
"""Hears of a field that cannot be read, as ``owner.field``, and why."""


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads fields of one object of torch.

    Attributes:
        owner: what a field's name begins with in what is told.
        source: the object.
        tell: see ``Tell``; None raises the error instead.
    """

    owner: str
    source: Any
    tell: Tell | None

    def __call__(
        self,
        name: str,
        neutral: T,
        convert: Callable[[Any], T] = _as_it_is,
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
            if self.tell is None:
                raise
            self.tell(f"{self.owner}{name}", error)
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

    def each(owner: str, copy: Callable[[_Reader], Any]) -> Callable[[Any], Any]:
        return lambda infos: tuple(copy(_Reader(owner, i, tell_field)) for i in infos)

    conversions: dict[str, Callable[[Any], Any]] = {
        "input_info": each("input_info.", _mutation),
        "output_info": each("output_info.", _output),
        "bw_donated_idxs": lambda v: None if v is None else tuple(v),
        "mutated_graph_handled_indices_seen_by_autograd": tuple,
        "saved_tensor_is_graph_input": tuple,
        "dynamic_saved_tensors_idxs": _dynamic,
        "subclass_tangent_meta": lambda v: tuple(map(_tangent, v)),
        "tokens": len,
        "indices_of_inputs_that_requires_grad_with_mutations_in_bw": tuple,
    }
    known: dict[str, Any] = {
        f.name: read(
            f.name,
            f.default,
            conversions.get(f.name, _as_it_is),
            optional=f.name in _NOT_IN_EVERY_TORCH,
        )
        for f in fields(ViewAndMutationMeta)
        if f.name != "unknown"
    }
    return ViewAndMutationMeta(**known, unknown=tuple(unknown))


_NOT_IN_EVERY_TORCH = ("saved_tensor_is_graph_input",)


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

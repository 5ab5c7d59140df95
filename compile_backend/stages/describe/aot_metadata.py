"""Copies of AOTAutograd's metadata and descriptors: the one place that reads torch's.

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

from memprof.profiler.model import (
    InputAliasInfo,
    MemoryFormatMeta,
    MutationType,
    OutputAliasInfo,
    OutputType,
    ViewAndMutationMeta,
)

T = TypeVar("T")


def view_and_mutation_meta(
    meta: Any, on_unknown: Callable[[str, Exception], None] = lambda field, error: None
) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's; None gives one of which nothing is known.
        on_unknown: called once for each field that cannot be read, with ``owner.field`` and the
            error.
    """
    if meta is None:
        return ViewAndMutationMeta(unknown=tuple(f.name for f in fields(ViewAndMutationMeta)))
    unknown: list[str] = []

    def read(source: Any, name: str, neutral: T, convert: Callable[[Any], T], owner: str = "") -> T:
        try:
            return convert(getattr(source, name))
        except Exception as error:
            if owner + name not in unknown:
                unknown.append(owner + name)
                on_unknown(f"ViewAndMutationMeta.{owner}{name}", error)
            return neutral

    def input_(info: Any) -> InputAliasInfo:
        neutral = InputAliasInfo()
        of_name = {"mutation_type": lambda v: MutationType(v.name.lower())}
        return InputAliasInfo(
            **{
                f.name: read(
                    info, f.name, getattr(neutral, f.name), of_name.get(f.name, bool), "input_info."
                )
                for f in fields(InputAliasInfo)
            }
        )

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
        "input_info": lambda v: tuple(map(input_, v)),
        "output_info": lambda v: tuple(map(output, v)),
        "bw_donated_idxs": lambda v: None if v is None else tuple(v),
        "mutated_graph_handled_indices_seen_by_autograd": tuple,
        "saved_tensor_is_graph_input": tuple,
        "dynamic_saved_tensors_idxs": lambda v: tuple((i, frozenset(d)) for i, d in v.items()),
        "static_input_indices": tuple,
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


def _tangent(meta: Any) -> MemoryFormatMeta | None:
    layout = getattr(meta, "memory_format", None)
    if type(meta).__name__ != "PlainTensorMeta" or layout is None:
        return None
    size, stride, memory_format = layout.size, layout.stride, layout.memory_format
    return MemoryFormatMeta(
        size=size and tuple(size),
        stride=stride and tuple(stride),
        memory_format=None if memory_format is None else str(memory_format).removeprefix("torch."),
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
    of = next((getattr(desc, name) for name in _OF if hasattr(desc, name)), None)
    return Descriptor(
        kind,
        text=str(desc.expr()),
        index=getattr(desc, "idx", None),
        target=getattr(desc, "target", getattr(desc, "attr", None)),
        of=descriptor(of) if of is not None else None,
    )

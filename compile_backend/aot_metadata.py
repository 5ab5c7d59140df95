"""AOTAutograd's metadata as immutable data of our own: what ``roles/`` reads of it, and no more.

Outputs of a compiled forward graph stand in this order::

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
(``knows``) and does without. ``tell`` hears of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

# --- what a compiled forward writes to, what its outputs alias, what it saves ---------------


class MutationType(str, Enum):
    """Who carries a mutation of an input out. The values are AOTAutograd's names."""

    NOT_MUTATED = "not_mutated"
    MUTATED_IN_GRAPH = "mutated_in_graph"
    """The compiled graph writes into the input."""
    MUTATED_OUT_GRAPH = "mutated_out_graph"
    """The graph returns the new value; AOTAutograd copies it into the input afterwards."""


@dataclass(frozen=True, slots=True)
class ViewAndMutationMeta:
    """The view and mutation metadata of one compiled function.

    Attributes:
        input_info: how each input is mutated.
        output_info: for each user output the input whose memory it is, None for any other.
        num_intermediate_bases: bases that the graph returns for outputs that view them.
        is_rng_op_functionalized: random operators take seed and offset as inputs.
        num_symints_saved_for_bw: symbolic integers among the forward's outputs for its
            backward; None until the joint graph is partitioned.
        num_opaque_objects_saved_for_bw: opaque objects among the saved values.
        bw_donated_idxs: inputs of the backward whose memory nobody else holds, so that it may
            overwrite them; None until partitioned.
        unknown: fields that torch has in another form than memprof knows, e.g.
            ``num_intermediate_bases`` or ``output_info.base_idx``; they have their default.
    """

    input_info: tuple[MutationType, ...] = ()
    output_info: tuple[int | None, ...] = ()
    num_intermediate_bases: int = 0
    is_rng_op_functionalized: bool = False
    num_symints_saved_for_bw: int | None = None
    num_opaque_objects_saved_for_bw: int | None = None
    bw_donated_idxs: tuple[int, ...] | None = None
    unknown: tuple[str, ...] = ()

    def knows(self, *names: str) -> bool:
        """Whether these fields could be read, with all that is in them."""
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
        """Whether it is known what the forward saves for its backward, and where it stands."""
        unread = {name.partition(".")[0] for name in self.unknown} - {"bw_donated_idxs"}
        return self.num_symints_saved_for_bw is not None and not unread

    def saved_positions(self, num_outputs: int) -> tuple[range, range, range]:
        """Tensors, opaque objects and symints among a partitioned forward's outputs."""
        symints = num_outputs - (self.num_symints_saved_for_bw or 0)
        opaque = symints - (self.num_opaque_objects_saved_for_bw or 0)
        return range(self.num_forward, opaque), range(opaque, symints), range(symints, num_outputs)


T = TypeVar("T")


def view_and_mutation_meta(
    meta: Any, tell: Callable[[str, Exception], None] = lambda field, error: None
) -> ViewAndMutationMeta:
    """Copy of a ``torch._functorch._aot_autograd.schemas.ViewAndMutationMeta``.

    Args:
        meta: torch's.
        tell: hears of fields that cannot be read, once of each, as ``owner.field``, and why.
    """
    unknown: list[str] = []

    def read(source: Any, name: str, neutral: T, convert: Callable[[Any], T], owner: str = "") -> T:
        try:
            return convert(getattr(source, name))
        except Exception as error:
            if owner + name not in unknown:
                unknown.append(owner + name)
                tell(f"ViewAndMutationMeta.{owner}{name}", error)
            return neutral

    def mutation(info: Any) -> MutationType:
        none = MutationType.NOT_MUTATED
        of_name = lambda v: MutationType(v.name.lower())  # noqa: E731
        return read(info, "mutation_type", none, of_name, "input_info.")

    def aliased_input(info: Any) -> int | None:
        kind = read(info, "output_type", "", lambda v: str(v.name), "output_info.")
        index = read(info, "base_idx", None, lambda v: v, "output_info.")
        return index if kind in ("alias_of_input", "is_input") else None

    def same(name: str, neutral: T) -> T:
        return read(meta, name, neutral, lambda v: v)

    return ViewAndMutationMeta(
        input_info=read(meta, "input_info", (), lambda v: tuple(map(mutation, v))),
        output_info=read(meta, "output_info", (), lambda v: tuple(map(aliased_input, v))),
        num_intermediate_bases=same("num_intermediate_bases", 0),
        is_rng_op_functionalized=same("is_rng_op_functionalized", False),
        num_symints_saved_for_bw=same("num_symints_saved_for_bw", None),
        num_opaque_objects_saved_for_bw=same("num_opaque_objects_saved_for_bw", None),
        bw_donated_idxs=read(
            meta, "bw_donated_idxs", None, lambda v: None if v is None else tuple(v)
        ),
        unknown=tuple(unknown),
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

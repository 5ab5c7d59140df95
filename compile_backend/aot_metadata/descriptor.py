"""What AOTAutograd says a graph input or output is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


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

"""What AOTAutograd says a graph input or output is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class DescriptorKind(str, Enum):
    """Root of a descriptor, or the transformation that made one value from another."""

    # Inputs.
    PLAIN_INPUT = "plain_input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    VIEW_BASE = "view_base"
    SYNTHETIC_BASE = "synthetic_base"
    TANGENT = "tangent"
    # Outputs.
    PLAIN_OUTPUT = "plain_output"
    INPUT_MUTATION = "input_mutation"
    METADATA_MUTATION = "metadata_mutation"
    INTERMEDIATE_BASE = "intermediate_base"
    GRADIENT = "gradient"
    SAVED_FOR_BACKWARD = "saved_for_backward"
    SAVED_FOR_BACKWARD_NO_VC_CHECK = "saved_for_backward_no_vc_check"
    # Both.
    SUBCLASS_ATTRIBUTE = "subclass_attribute"
    SUBCLASS_SIZE = "subclass_size"
    SUBCLASS_STRIDE = "subclass_stride"
    RNG = "rng"
    TOKEN = "token"
    DUMMY = "dummy"


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
        parts = (
            DescriptorKind.SUBCLASS_ATTRIBUTE,
            DescriptorKind.SUBCLASS_SIZE,
            DescriptorKind.SUBCLASS_STRIDE,
        )
        return self.of.whole if self.kind in parts and self.of is not None else self

    @property
    def attribute_path(self) -> tuple[str, ...]:
        """Attributes that lead from ``whole`` to this part of a tensor subclass."""
        outer = self.of.attribute_path if self.of is not None and self.whole is not self else ()
        is_attribute = self.kind is DescriptorKind.SUBCLASS_ATTRIBUTE and self.target is not None
        return (*outer, self.target) if is_attribute and self.target else outer


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

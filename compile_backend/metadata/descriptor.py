"""What AOTAutograd says a graph input or output is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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

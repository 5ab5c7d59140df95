"""Sizes and strides that may be symbolic, in a form that outlives the compilation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SymbolicSize:
    """A size or stride that is known only as an expression.

    Attributes:
        expr: the expression over size symbols, e.g. ``s0*s1``.
        nested: it is the ragged size of a nested (jagged) tensor. Such a size is never a
            graph input: the subclass recomputes it from its offsets.
    """

    expr: str
    nested: bool = False

    def __str__(self) -> str:
        return self.expr


NESTED_PLACEHOLDER = -1
"""What a nested size becomes in runtime-safe metadata; jagged tensors ignore it."""

# None stands, in runtime-safe metadata, for a size that is read from an argument at
# every call (the protocol of AOTAutograd's make_runtime_safe).
Size = int | SymbolicSize | None


def is_symbolic(size: Size) -> bool:
    """Whether ``size`` travels as a graph argument of its own."""
    return size is None or (isinstance(size, SymbolicSize) and not size.nested)


def runtime_safe_size(size: Size) -> Size:
    """``size`` without its expression: None where symbolic, -1 where nested."""
    if isinstance(size, SymbolicSize):
        return NESTED_PLACEHOLDER if size.nested else None
    return size

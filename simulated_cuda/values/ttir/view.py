"""Values of TTIR in C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .types import Shape


@dataclass(frozen=True)
class CValue:
    """A strided view of a C expression, variable or array.

    So ``splat``, ``broadcast``, ``expand_dims`` and ``trans`` cost nothing: they are other views.
    """

    name: str
    """An expression of C: that of the value itself, or of an array."""
    shape: Shape | None
    """Size of each dimension; None for a scalar."""
    type: str
    """TTIR's type of an element."""
    strides: tuple[int, ...] = ()
    """In elements, for each dimension; 0 where all elements along it are the same."""
    store: int | None = None
    """Offset of the array among a program's arrays, in bytes; None if there is no array."""

    @staticmethod
    def same(name: str, shape: Shape | None, kind: str) -> CValue:
        """A view whose elements are all the value of one expression."""
        return CValue(name, shape, kind, tuple(0 for _ in shape or ()))

    def uniform(self) -> bool:
        """Tells whether all elements are the same one."""
        sizes = zip(self.strides, self.shape or (), strict=False)
        return not any(stride and size > 1 for stride, size in sizes)

    def at(self, indices: Sequence[str]) -> str:
        """An expression for the element whose index is given by one expression a dimension."""
        if self.store is None:
            return self.name
        if self.shape is None:
            return self.name + "[0]"
        dimensions = zip(indices, self.strides, self.shape, strict=False)
        terms = [
            f"{index}*{stride}" if stride != 1 else index
            for index, stride, size in dimensions
            if stride and size > 1
        ]
        return f"{self.name}[{'+'.join(terms) or '0'}]"

    def first(self) -> str:
        """An expression for the first element."""
        return self.at(["0"] * len(self.shape or ()))

    def element(self, indices: Sequence[str]) -> CValue:
        """One element of an array, as a scalar."""
        terms = [f"{index}*{stride}" for index, stride in zip(indices, self.strides, strict=False)]
        return CValue.same(f"{self.name}[{'+'.join(terms)}]", None, self.type)

    def is_contiguous(self) -> bool:
        """Tells whether it is an array whose elements lie one after the other."""
        if self.store is None or self.shape is None:
            return False
        expected = contiguous(self.shape)
        sizes = zip(self.shape, self.strides, expected, strict=True)
        return all(size == 1 or stride == dense for size, stride, dense in sizes)


def contiguous(shape: Shape) -> tuple[int, ...]:
    """The strides of an array of this shape, the last dimension the innermost."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)

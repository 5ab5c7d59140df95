"""The body of a C function, as it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .types import NARROW_FLOATS, Shape, TensorType, c_size, c_type, is_pointer
from .view import CValue, contiguous

_ALIGNMENT = 64


class Emitter:
    """Statements of C, names that are used once, and room for arrays.

    All arrays of a program lie in one block of memory, ``A``, which its caller gives.
    """

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.scratch_bytes = 0
        self._names = 0

    def emit(self, statement: str) -> None:
        """Add a statement, or the beginning or end of one."""
        self.statements.append(statement)

    def new_name(self, prefix: str = "v") -> str:
        """A name that nothing else has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def array(self, shape: Shape, kind: str) -> CValue:
        """A new array, whose content is not known."""
        name = self.new_name()
        offset = self.scratch_bytes
        size = math.prod(shape) * c_size(kind)
        self.scratch_bytes += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self.emit(f"{c_type(kind)}* {name} = ({c_type(kind)}*)(A+{offset});")
        return CValue(name, shape, kind, contiguous(shape), offset)

    def variable(self, tensor: TensorType) -> CValue:
        """A new array that can be assigned to, of one element for a scalar."""
        shape, kind = tensor
        array = self.array(shape or (1,), kind)
        return array if shape is not None else CValue(array.name, None, kind, (), array.store)

    def loop(self, shape: Shape | None, body: Callable[[list[str]], str]) -> None:
        """Run a statement, which is made for the names of the indices, for each element."""
        indices: list[str] = []
        head = ""
        for size in shape or ():
            if size == 1:
                indices.append("0")
                continue
            index = self.new_name("i")
            indices.append(index)
            head += f"for(long {index}=0;{index}<{size};{index}++) "
        self.emit(head + "{" + body(indices) + "}")

    def copy(self, target: CValue, source: CValue) -> None:
        """Assign each element."""
        self.loop(target.shape, lambda i: f"{target.at(i)} = {source.at(i)};")

    def dense(self, view: CValue) -> CValue:
        """Lays the elements out one after the other in an array."""
        if view.is_contiguous():
            return view
        assert view.shape is not None
        result = self.array(view.shape, view.type)
        self.copy(result, view)
        return result

    def elementwise(
        self,
        shape: Shape | None,
        kind: str,
        expression: Callable[..., str],
        operands: Sequence[CValue],
    ) -> CValue:
        """A new value, whose elements are made of those of the operands at the same place.

        ``expression`` gives the C for as many expressions as there are operands. Where all elements
        of each operand are the same, so is the result's, in one variable.
        """
        if all(operand.uniform() for operand in operands):
            name = self.new_name()
            value = expression(*[operand.first() for operand in operands])
            if is_pointer(kind):
                self.emit(f"char* {name} = (char*)({value});")
            else:
                self.emit(
                    f"const {c_type(kind)} {name} = ({c_type(kind)})({_in_range(kind, value)});"
                )
            return CValue.same(name, shape, kind)
        assert shape is not None
        result = self.array(shape, kind)

        def assignment(indices: list[str]) -> str:
            value = expression(*[operand.at(indices) for operand in operands])
            return f"{result.at(indices)} = ({c_type(kind)})({_in_range(kind, value)});"

        self.loop(shape, assignment)
        return result


def _in_range(kind: str, value: str) -> str:
    """An expression that rounds or cuts a value to one that its type can hold."""
    if kind == "i1":
        return f"(({value}))&1"
    if kind in NARROW_FLOATS:
        return f"RND({NARROW_FLOATS[kind]},({value}))"
    return f"({value})"

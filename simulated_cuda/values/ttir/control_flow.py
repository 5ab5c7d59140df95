"""Operations with regions: loops, branches, reductions and scans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .translator import Region, Translator, matched
from .types import IDENTIFIER, UnsupportedError, c_type, parse_types
from .view import CValue


def _carried(t: Translator, text: str) -> list[CValue]:
    """Variables for what a loop carries from one turn to the next: ``%name = %initial, …``."""
    variables = []
    for name, initial in re.findall(rf"(%[\w$.\-]+) = ({IDENTIFIER})", text):
        value = t.values[initial]
        variable = t.variable((value.shape, value.type))
        t.copy(variable, value)
        t.values[name] = variable
        variables.append(variable)
    return variables


def _assign(t: Translator, variables: Sequence[CValue], values: Sequence[CValue]) -> None:
    """Assign all values at once: a variable may be part of another one's value."""
    names = {variable.name for variable in variables}
    kept: list[CValue] = []
    for variable, value in zip(variables, values, strict=False):
        if value.name in names and value.name != variable.name:
            copied = t.variable((variable.shape, variable.type))
            t.copy(copied, value)
            kept.append(copied)
        else:
            kept.append(value)
    for variable, value in zip(variables, kept, strict=False):
        if value.name != variable.name or value.strides != variable.strides:
            t.copy(variable, value)


def _for(t: Translator, line: str) -> list[CValue]:
    match = matched(r"scf\.for (?:unsigned )?(%\S+) = (%\S+) to (%\S+) step (%\S+)\s*(.*)$", line)
    low, high, step = (t.values[match.group(i)] for i in (2, 3, 4))
    variables = _carried(t, match.group(5))
    i = t.new_name("i")
    t.emit(f"for ({c_type(low.type)} {i}={low.at([])}; {i}<{high.at([])}; {i}+={step.at([])}) {{")
    t.values[match.group(1)] = CValue.same(i, None, low.type)
    _assign(t, variables, t.block())
    t.emit("}")
    return variables


def _if(t: Translator, line: str) -> list[CValue]:
    match = matched(rf"scf\.if ({IDENTIFIER})(?: -> (\(.*\)))? \{{", line)
    results = parse_types(match.group(2)) if match.group(2) else []
    variables = [t.variable(result) for result in results]
    t.emit(f"if ({t.values[match.group(1)].at([])}) {{")
    _assign(t, variables, t.block())
    if t.closing_line.startswith("} else"):
        t.emit("} else {")
        _assign(t, variables, t.block())
    t.emit("}")
    return variables


def _while(t: Translator, line: str) -> list[CValue]:
    """Write a loop: a block that ends with the condition, and one that runs while it holds."""
    match = matched(r"scf\.while(?: \((.*?)\))? : (\(.*?\)) -> (.*?) \{$", line)
    variables = _carried(t, match.group(1) or "")
    results = [t.variable(result) for result in parse_types(match.group(3))]
    t.emit("for (;;) {")
    condition, *passed = t.block()
    _assign(t, results, passed)
    t.emit(f"if(!{condition.at([])}) break;")
    if not t.closing_line.startswith("} do"):
        raise UnsupportedError("scf.while form")
    if t.lines[t.position].startswith("^bb0"):
        names = re.findall(r"(%[\w$.\-]+): ([^,)]*)", t.next_line())
        for (name, _), result in zip(names, results, strict=False):
            t.values[name] = result
    _assign(t, variables, t.block())
    t.emit("}")
    return results


class _Combination:
    """Common part of a reduction and a scan: tensors, an axis, and a region that combines two
    elements.

    The region is written once, for elements of copies of the tensors; it gives the combined one.
    """

    def __init__(self, t: Translator, line: str) -> None:
        self.t = t
        operands = t.named(line[: line.index("<{")])
        axis = re.search(r"axis = (\d+)", line)
        if axis is None or operands[0].shape is None:
            raise UnsupportedError(line[:80])
        self.axis = int(axis.group(1))
        self.names = re.findall(r"(%[\w$.\-]+):", t.next_line())
        """Names of the region's arguments: an element of each tensor, then the other of each."""
        self.shape = operands[0].shape
        self.length = self.shape[self.axis]
        self.copies = []
        for operand in operands:
            copy = t.array(self.shape, operand.type)
            t.copy(copy, operand)
            self.copies.append(copy)
        self.indices = ["0" if size == 1 else t.new_name("i") for size in self.shape]

    def loops(self) -> str:
        """The head of loops over all dimensions but the axis."""
        dimensions = enumerate(zip(self.indices, self.shape, strict=True))
        return "".join(
            f"for(long {i}=0;{i}<{size};{i}++) "
            for k, (i, size) in dimensions
            if size > 1 and k != self.axis
        )

    def at(self, place: str) -> list[CValue]:
        """The element of each tensor at a place of the axis."""
        indices = list(self.indices)
        indices[self.axis] = place
        return [copy.element(indices) for copy in self.copies]

    def combine(self, first: list[CValue], second: list[CValue], target: list[CValue]) -> None:
        """Write the region, and assign what it gives."""
        for name, value in zip(self.names, first + second, strict=False):
            self.t.values[name] = value
        combined = []
        for value in self.t.block():
            name = self.t.new_name("t")
            self.t.emit(f"{c_type(value.type)} {name} = {value.at([])};")
            combined.append(name)
        for element, name in zip(target, combined, strict=False):
            self.t.emit(f"{element.name} = {name};")


def _reduce(t: Translator, line: str) -> list[CValue]:
    """Write a reduction by halves, as a device does it: the first is combined with the second."""
    tensors = _Combination(t, line)
    length, axis = tensors.length, tensors.axis
    width, j = t.new_name("w"), t.new_name("i")
    t.emit(
        f"for(long {width}={length}/2;{width};{width}/=2) {tensors.loops()} "
        f"for(long {j}=0;{j}<{width};{j}++) {{"
    )
    first = tensors.at(j)
    tensors.combine(first, tensors.at(f"({j}+{width})"), first)
    t.emit("}")
    if length & (length - 1):
        raise UnsupportedError("reduction over a length that is no power of two")
    shape = tensors.shape[:axis] + tensors.shape[axis + 1 :]
    return [
        CValue(
            copy.name,
            shape or None,
            copy.type,
            copy.strides[:axis] + copy.strides[axis + 1 :],
            copy.store,
        )
        for copy in tensors.copies
    ]


def _scan(t: Translator, line: str) -> list[CValue]:
    """Each element becomes what it gives with the one before."""
    reverse = "reverse = true" in line
    tensors = _Combination(t, line)
    length = tensors.length
    j = t.new_name("i")
    here = f"({length}-1-{j})" if reverse else j
    before = f"({length}-{j})" if reverse else f"({j}-1)"
    t.emit(f"{tensors.loops()} for(long {j}=1;{j}<{length};{j}++) {{")
    current = tensors.at(here)
    tensors.combine(tensors.at(before), current, current)
    t.emit("}")
    return tensors.copies


HANDLERS: Mapping[str, Region] = {
    "scf.for": _for,
    "scf.if": _if,
    "scf.while": _while,
    "tt.reduce": _reduce,
    "tt.scan": _scan,
}

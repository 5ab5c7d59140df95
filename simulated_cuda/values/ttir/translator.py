"""Reads the text of a kernel and writes C, one operation after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import control_flow, memory, shapes
from .elementwise import elementwise
from .emitter import Emitter
from .types import (
    BITS,
    IDENTIFIER,
    NARROW_FLOATS,
    UnsupportedError,
    c_type,
    memory_size,
    parse_type,
    split_commas,
    split_type,
)
from .view import View

__all__ = ["PRELUDE", "Operation", "Translator", "to_c"]

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LOCATION = re.compile(
    rf'\s*loc\((?:[^()"]|{_QUOTED}|'
    rf'\((?:[^()"]|{_QUOTED}|\((?:[^()]|\([^()]*\))*\))*\))*\)'
)
"""Where in the source an operation is from, with up to three levels of parentheses within."""
_TERMINATOR = re.compile(r"(scf\.yield|tt\.\w+\.return|tt\.return|scf\.condition)\b")


@dataclass(frozen=True)
class Operation:
    """One operation: its name, operands and what else its line says."""

    name: str
    operands: Sequence[View]
    text: str
    """What stands behind the name: operands and attributes."""
    type: str
    """What stands behind the colon: types of operands, of the result, or both."""
    line: str
    """The whole line."""

    @property
    def dialect(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def short_name(self) -> str:
        """The part of the name behind the dot."""
        return self.name.partition(".")[2]


Handler = Callable[["Translator", Operation], "View | list[View]"]
Region = Callable[["Translator", str], "list[View]"]

_HANDLERS: Mapping[str, Handler] = {**shapes.HANDLERS, **memory.HANDLERS}
_REGIONS: Mapping[str, Region] = control_flow.HANDLERS
"""Operations with regions read the lines of these themselves."""


class Translator(Emitter):
    """One kernel: the lines of its text, and the values that they have named so far."""

    def __init__(self, text: str) -> None:
        super().__init__()
        lines = (line.strip() for line in _LOCATION.sub("", text).splitlines())
        skipped = ("#", "module", "//")
        self.lines = [line for line in lines if line and not line.startswith(skipped)]
        self.position = 0
        self.closing_line = ""
        """With which the last block ended: ``}``, ``} else {`` or ``} do {``."""
        self.values: dict[str, View] = {}

    def next_line(self) -> str:
        """Take a line."""
        line = self.lines[self.position]
        self.position += 1
        return line

    def named(self, text: str) -> list[View]:
        """The values whose names stand in a text."""
        return [self.values[name] for name in re.findall(IDENTIFIER, text)]

    def block(self) -> list[View]:
        """Translate up to the closing brace; returns the operands of the terminator."""
        results: list[View] = []
        while True:
            line = self.next_line()
            if line.startswith("}"):
                self.closing_line = line
                return results
            if _TERMINATOR.match(line):
                results = self.named(split_type(line)[0])
            else:
                self._operation(line)

    def _operation(self, line: str) -> None:
        match = re.match(r"(%[\w$.\-]+)(?::(\d+))? = (.*)$", line)
        result, text = (match.group(1), match.group(3)) if match else (None, line)
        name = _matched(r'"?([\w.]+)"?', text).group(1)
        if name in _REGIONS:
            self._bind(result, _REGIONS[name](self, text))
            return
        head, kind = split_type(text)
        rest = head[head.index(name) + len(name) :]
        operands = self.named(re.sub(r'"[^"]*"', "", rest))
        operation = Operation(name, operands, rest, kind, line)
        if name in _HANDLERS:
            made = _HANDLERS[name](self, operation)
        elif operation.dialect in ("arith", "math", "tt"):
            made = elementwise(self, operation)
        else:
            raise UnsupportedError(name)
        self._bind(result, made if isinstance(made, list) else [made])

    def _bind(self, name: str | None, views: Sequence[View]) -> None:
        if name is None:
            return
        if len(views) == 1:
            self.values[name] = views[0]
        for i, view in enumerate(views):
            self.values[f"{name}#{i}"] = view

    def kernel(self) -> tuple[str, list[int]]:
        """The whole kernel: see `to_c`."""
        line = self.next_line()
        match = re.match(r"tt\.func public @([\w$.]+)\((.*)\) attributes", line) or re.match(
            r"tt\.func public @([\w$.]+)\((.*)\)", line
        )
        if not match:
            raise UnsupportedError(line[:80])
        name, kinds = match.group(1), self._arguments(match.group(2))
        self.block()
        if any(line.startswith("tt.func") for line in self.lines[self.position :]):
            raise UnsupportedError("functions that are not inlined")
        declarations = "".join(_declaration(i, kind) for i, kind in enumerate(kinds))
        body = "\n      ".join(self.statements)
        source = f"""#define KNAME "{name}"
static int prog(void** args, const unsigned* grid, char* A, int pid_x, int pid_y, int pid_z) {{
{declarations}      {body}
  return 0;
}}
int run(void** args, const unsigned* grid) {{
  char* A = malloc({self.scratch_bytes + 64}); int e = 0;
  for (unsigned z = 0; z < grid[2] && !e; z++)
  for (unsigned y = 0; y < grid[1] && !e; y++)
  for (unsigned x = 0; x < grid[0] && !e; x++)
    e = prog(args, grid, (char*)(((uintptr_t)A + 63) / 64 * 64), x, y, z);
  free(A); return e;
}}
"""
        return PRELUDE + source, [memory_size(kind) for kind in kinds]

    def _arguments(self, text: str) -> list[str]:
        """Name the kernel's arguments; returns their types."""
        kinds = []
        for i, argument in enumerate(split_commas(text)):
            name, kind = _matched(r"(%[\w$.\-]+): (.*?)(?:\s*\{.*\})?$", argument).groups()
            _, kind = parse_type(kind)
            self.values[name] = View.same(f"arg{i}", None, kind)
            kinds.append(kind)
        return kinds


def _matched(pattern: str, text: str) -> re.Match[str]:
    """A match that must be; raises UnsupportedError where the text has another form."""
    match = re.match(pattern, text)
    if match is None:
        raise UnsupportedError(text[:80])
    return match


def _declaration(number: int, kind: str) -> str:
    """A variable for one argument, whose value ``args`` points to."""
    if kind in NARROW_FLOATS:
        read = f"ld_{NARROW_FLOATS[kind]}(*(uint{BITS[kind]}_t*)args[{number}])"
        return f"  const float arg{number} = {read};\n"
    one_bit = "&1" if kind == "i1" else ""
    c = c_type(kind)
    return f"  {c} const arg{number} = *({c}*)args[{number}]{one_bit};\n"


def to_c(text: str) -> tuple[str, list[int]]:
    """C for a kernel's TTIR, and the sizes of its arguments in bytes.

    The C defines ``int run(void** args, const unsigned grid[3])``, which runs the whole grid, one
    program after the other, and returns 0 or CUDA's error: 700 where memory is touched that is not
    allocated, 710 where an assertion fails.

    Raises UnsupportedError for what cannot be translated.
    """
    return Translator(text).kernel()

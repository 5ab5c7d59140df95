"""A whole kernel: its arguments, its body, and the loop over the grid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from . import control_flow, memory, shapes
from .elementwise import elementwise
from .translator import Handler, Translator, TritonOperation, matched
from .types import (
    BITS,
    NARROW_FLOATS,
    UnsupportedError,
    c_type,
    memory_size,
    parse_type,
    split_commas,
)
from .view import CValue

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()
_HANDLERS: Mapping[str, Handler] = {**shapes.HANDLERS, **memory.HANDLERS}


def _handler_of(operation: TritonOperation) -> Handler:
    if operation.name in _HANDLERS:
        return _HANDLERS[operation.name]
    if operation.dialect in ("arith", "math", "tt"):
        return elementwise
    raise UnsupportedError(operation.name)


def to_c(text: str) -> tuple[str, list[int]]:
    """C for a kernel's TTIR, and the sizes of its arguments in bytes.

    The C defines ``int run(void** args, const unsigned grid[3])``, which runs the whole grid, one
    program after the other, and returns 0 or CUDA's error: 700 where memory is touched that is not
    allocated, 710 where an assertion fails.

    Raises UnsupportedError for what cannot be translated.
    """
    t = Translator(text, _handler_of, control_flow.HANDLERS)
    line = t.next_line()
    match = re.match(r"tt\.func public @([\w$.]+)\((.*)\) attributes", line) or re.match(
        r"tt\.func public @([\w$.]+)\((.*)\)", line
    )
    if not match:
        raise UnsupportedError(line[:80])
    name, kinds = match.group(1), _arguments(t, match.group(2))
    t.block()
    if any(line.startswith("tt.func") for line in t.lines[t.position :]):
        raise UnsupportedError("functions that are not inlined")
    declarations = "".join(_declaration(i, kind) for i, kind in enumerate(kinds))
    body = "\n      ".join(t.statements)
    source = f"""#define KNAME "{name}"
static int prog(void** args, const unsigned* grid, char* A, int pid_x, int pid_y, int pid_z) {{
{declarations}      {body}
  return 0;
}}
int run(void** args, const unsigned* grid) {{
  char* A = malloc({t.scratch_bytes + 64});
  char* aligned = (char*)(((uintptr_t)A + 63) / 64 * 64);
  int e = 0;
  for (unsigned z = 0; z < grid[2] && !e; z++)
    for (unsigned y = 0; y < grid[1] && !e; y++)
      for (unsigned x = 0; x < grid[0] && !e; x++)
        e = prog(args, grid, aligned, x, y, z);
  free(A);
  return e;
}}
"""
    return PRELUDE + source, [memory_size(kind) for kind in kinds]


def _arguments(t: Translator, text: str) -> list[str]:
    """Name the kernel's arguments; returns their types."""
    kinds = []
    for i, argument in enumerate(split_commas(text)):
        name, kind = matched(r"(%[\w$.\-]+): (.*?)(?:\s*\{.*\})?$", argument).groups()
        _, kind = parse_type(kind)
        t.values[name] = CValue.same(f"arg{i}", None, kind)
        kinds.append(kind)
    return kinds


def _declaration(number: int, kind: str) -> str:
    """A variable for one argument, whose value ``args`` points to."""
    if kind in NARROW_FLOATS:
        read = f"ld_{NARROW_FLOATS[kind]}(*(uint{BITS[kind]}_t*)args[{number}])"
        return f"  const float arg{number} = {read};\n"
    one_bit = "&1" if kind == "i1" else ""
    c = c_type(kind)
    return f"  {c} const arg{number} = *({c}*)args[{number}]{one_bit};\n"

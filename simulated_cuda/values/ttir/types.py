"""TTIR's types and literals, and what they are in C."""

from __future__ import annotations

import re
import struct

Shape = tuple[int, ...]
TensorType = tuple["Shape | None", str]
"""A shape, which is None for a scalar, and the type of the elements."""


IDENTIFIER = r"%[\w$.\-]+(?:#\d+)?"
"""A pattern of a value's name; ``%1#0`` is the first of several that one operation gives."""


class UnsupportedError(Exception):
    """A kernel has something that is not translated; the message names it."""


C_TYPES = {
    "i1": "uint8_t",
    "i8": "int8_t",
    "i16": "int16_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "index": "int64_t",
    "f16": "float",
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "f8E4M3FN": "float",
    "f8E5M2": "float",
}
BITS = {
    "i1": 8,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "index": 64,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f8E4M3FN": 8,
    "f8E5M2": 8,
}
"""Bits of an element in the memory of the device, by type."""
NARROW_FLOATS = {"f16": "f16", "bf16": "bf16", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}
"""Types that C computes as float and rounds whenever one is made: the names of their ``ld_`` and
``st_`` in prelude.h."""


def is_pointer(kind: str) -> bool:
    """Tells whether an element type is a pointer: ``!tt.ptr<f32>``."""
    return kind.startswith("!tt.ptr")


def is_float(kind: str) -> bool:
    """Tells whether an element type is of floating point numbers."""
    return kind in C_TYPES and "f" in kind


def pointee(kind: str) -> str:
    """Type to which a pointer type points, without its address space."""
    return split_commas(kind[kind.index("<") + 1 : -1])[0]


def c_type(kind: str) -> str:
    """The C type that holds one element."""
    return "char*" if is_pointer(kind) else C_TYPES[kind]


def unsigned_c_type(kind: str) -> str:
    """The unsigned C type of as many bits, for an integer."""
    return "uint8_t" if kind == "i1" else "u" + C_TYPES[kind]


def c_size(kind: str) -> int:
    """Bytes of an element in a C variable."""
    if is_pointer(kind):
        return 8
    return {"float": 4, "double": 8}.get(C_TYPES[kind]) or BITS[kind] // 8


def memory_size(kind: str) -> int:
    """Bytes of an element in the memory of the device, and as an argument of a kernel."""
    return 8 if is_pointer(kind) else BITS[kind] // 8


def split_commas(text: str) -> list[str]:
    """The parts of a list, at the commas that no bracket encloses."""
    parts: list[str] = []
    depth = 0
    current = ""
    for i, c in enumerate(text):
        depth += _opens(c) - _closes(text, i)
        if c == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += c
    return [*parts, current.strip()] if current.strip() else parts


def split_type(line: str) -> tuple[str, str]:
    """An operation's text and its type: the parts before and behind the outermost `` :``."""
    depth = 0
    quoted = False
    for i, c in enumerate(line):
        if c == '"' and line[i - 1] != "\\":
            quoted = not quoted
        if quoted:
            continue
        depth += _opens(c) - _closes(line, i)
        if c == ":" and depth == 0 and line[i - 1] == " ":
            return line[:i], line[i + 1 :].strip()
    return line, ""


def _opens(c: str) -> bool:
    return c in "<([{"


def _closes(text: str, i: int) -> bool:
    """Tells whether there is a closing bracket; that of an arrow is none."""
    return text[i] in ">)]}" and not (text[i] == ">" and text[i - 1] == "-")


def parse_type(text: str) -> TensorType:
    """The shape and the element type that a text such as ``tensor<4x8xf32>`` names.

    Raises UnsupportedError for a type that has none in C.
    """
    text = text.strip()
    match = re.match(r"tensor<((?:\d+x)*)(.*)>$", text)
    element = split_commas(match.group(2))[0] if match else text
    if element not in C_TYPES and not is_pointer(element):
        raise UnsupportedError("type " + text)
    if match is None:
        return None, element
    return tuple(int(size) for size in match.group(1).split("x") if size), element


def parse_types(text: str) -> list[TensorType]:
    """The types of a list, in parentheses or not."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(part) for part in split_commas(text)]


def literal(text: str, kind: str) -> str:
    """A constant's number in C."""
    if kind == "i1":
        return "1" if text in ("true", "1", "-1") else "0"
    if not is_float(kind):
        return _integer(int(text, 0), kind)
    if text.startswith("0x"):
        return _float_of_bits(int(text, 16), kind)
    return f"({float(text)!r})" if kind == "f64" else f"({float(text)!r}f)"


def _integer(value: int, kind: str) -> str:
    if kind in ("i64", "index") and value > -(2**63):
        return f"INT64_C({value})"
    # The smallest number has no literal of its own: C would take it for minus a number too large.
    return f"({C_TYPES[kind]}){value & (1 << BITS[kind]) - 1}ull"


def _float_of_bits(bits: int, kind: str) -> str:
    """C literal of a number given by its bits, as MLIR prints those that decimals cannot name."""
    if kind in NARROW_FLOATS:
        return f"ld_{NARROW_FLOATS[kind]}({bits})"
    if kind == "f32":
        return f"f_of_u({bits}u)"
    exponent, mantissa = (bits >> 52) & 2047, bits & (1 << 52) - 1
    if exponent != 2047:
        value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
        return f"({value.hex()})"
    if mantissa:
        return "NAN"
    return "-INFINITY" if bits >> 63 else "INFINITY"

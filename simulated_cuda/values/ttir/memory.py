"""Operations on the device's memory, and assertions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .translator import Handler, Translator, TritonOperation
from .types import (
    BITS,
    NARROW_FLOATS,
    UnsupportedError,
    c_type,
    is_float,
    memory_size,
    pointee,
    unsigned_c_type,
)
from .view import CValue


def _operand(op: TritonOperation, i: int) -> CValue | None:
    """Operand ``i`` or None: a mask, or a value for masked elements, which are optional."""
    return op.operands[i] if len(op.operands) > i else None


def _where(mask: CValue | None, indices: list[str], end: str = "") -> str:
    return f"if({mask.at(indices)}){end}" if mask is not None else ""


def _check(t: Translator, pointers: CValue, mask: CValue | None, what: str) -> None:
    """Return error 700 from the kernel where memory is not allocated.

    The whole range that a tile touches is asked for at once, and element by element only when there
    is a gap in it.
    """
    size = memory_size(pointee(pointers.type))
    low, high = t.new_name("lo"), t.new_name("hi")
    t.emit(f"{{uintptr_t {low}=UINTPTR_MAX,{high}=0;")
    t.loop(
        pointers.shape,
        lambda i: (
            f"{_where(mask, i)}{{uintptr_t q=(uintptr_t){pointers.at(i)}; "
            f"if(q<{low}){low}=q; if(q>{high}){high}=q;}}"
        ),
    )
    t.emit(f"if({low}<={high} && !simgpu_range_ok((void*){low},{high}-{low}+{size})) {{")
    t.loop(
        pointers.shape,
        lambda i: (
            f"{_where(mask, i)}{{if(!simgpu_range_ok({pointers.at(i)},{size})) "
            f'return bad(KNAME,"{what}",{pointers.at(i)},{size});}}'
        ),
    )
    t.emit("}}")


def _read(kind: str, address: str) -> str:
    """An expression for what lies at an address."""
    if kind in NARROW_FLOATS:
        return f"ld_{NARROW_FLOATS[kind]}(*(uint{BITS[kind]}_t*){address})"
    if kind == "i1":
        return f"*(uint8_t*){address}!=0"
    return f"*({c_type(kind)}*){address}"


def _write(kind: str, address: str, value: str) -> str:
    """C statement that writes ``value`` to ``address``."""
    if kind in NARROW_FLOATS:
        return f"*(uint{BITS[kind]}_t*){address} = st_{NARROW_FLOATS[kind]}({value});"
    return f"*({c_type(kind)}*){address} = {value};"


def _no_block(pointers: CValue) -> None:
    if pointers.type.startswith("!tt.ptr<tensor"):
        raise UnsupportedError("block pointers")


def _add_pointer(t: Translator, op: TritonOperation) -> CValue:
    """Add offsets, which count elements, to pointers."""
    pointers = op.operands[0]
    size = memory_size(pointee(pointers.type))
    return t.elementwise(
        pointers.shape, pointers.type, lambda a, b: f"{a}+(int64_t){b}*{size}", op.operands
    )


def _load(t: Translator, op: TritonOperation) -> CValue:
    pointers, mask, other = op.operands[0], _operand(op, 1), _operand(op, 2)
    kind = pointee(pointers.type)
    _no_block(pointers)
    _check(t, pointers, mask, "a load")
    same = all(x is None or x.uniform() for x in (pointers, mask, other))
    if pointers.shape is None or same:
        name = t.new_name()
        value = _read(kind, pointers.first())
        zeros = ["0"] * len(pointers.shape or ())
        if mask is not None:
            value = f"{mask.at(zeros)} ? {value} : {other.at(zeros) if other is not None else 0}"
        t.emit(f"{c_type(kind)} {name} = {value};")
        return CValue.same(name, pointers.shape, kind)
    result = t.array(pointers.shape, kind)

    def assignment(i: list[str]) -> str:
        value = _read(kind, pointers.at(i))
        if mask is not None:
            value = f"{mask.at(i)} ? {value} : {other.at(i) if other is not None else 0}"
        return f"{result.at(i)} = {value};"

    t.loop(pointers.shape, assignment)
    return result


def _store(t: Translator, op: TritonOperation) -> list[CValue]:
    pointers, values, mask = op.operands[0], op.operands[1], _operand(op, 2)
    kind = pointee(pointers.type)
    _no_block(pointers)
    _check(t, pointers, mask, "a store")
    t.loop(
        pointers.shape,
        lambda i: _where(mask, i, " ") + _write(kind, pointers.at(i), values.at(i)),
    )
    return []


_UPDATES = {
    "add": "o+x",
    "and": "o&x",
    "exch": "x",
    "fadd": "o+x",
    "max": "o>x?o:x",
    "min": "o<x?o:x",
    "or": "o|x",
    "umax": "({u})o>({u})x?o:x",
    "umin": "({u})o<({u})x?o:x",
    "xor": "o^x",
}
"""C expressions of atomics by the old value ``o`` and operand ``x``; ``u`` is the unsigned type."""


def _atomic_update(t: Translator, op: TritonOperation) -> CValue:
    """Write an update that is not atomic, as programs run one after the other."""
    pointers, values, mask = op.operands[0], op.operands[1], _operand(op, 2)
    kind = pointee(pointers.type)
    _check(t, pointers, mask, "an atomic")
    unsigned = "" if is_float(kind) else unsigned_c_type(kind)
    update = _UPDATES[op.text.split(",")[0].strip()].format(u=unsigned)
    old = t.variable((pointers.shape, kind))

    def statement(i: list[str]) -> str:
        address = pointers.at(i)
        return (
            f"{old.at(i)}=0;{_where(mask, i)}"
            f"{{{c_type(kind)} o={_read(kind, address)}, x={values.at(i)}; "
            f"{old.at(i)}=o; {_write(kind, address, f'({update})')}}}"
        )

    t.loop(pointers.shape, statement)
    return old


def _compare_and_swap(t: Translator, op: TritonOperation) -> CValue:
    pointers, expected, values = op.operands[:3]
    kind = pointee(pointers.type)
    _check(t, pointers, None, "an atomic")
    old = t.variable((pointers.shape, kind))

    def statement(i: list[str]) -> str:
        address = pointers.at(i)
        return (
            f"{{{c_type(kind)} o=*({c_type(kind)}*){address}; {old.at(i)}=o; "
            f"if(o=={expected.at(i)}) {_write(kind, address, values.at(i))}}}"
        )

    t.loop(pointers.shape, statement)
    return old


def _assert(t: Translator, op: TritonOperation) -> list[CValue]:
    """Write an assertion, which ends the kernel with cudaErrorAssert, 710."""
    condition = op.operands[0]
    match = re.search(r'"((?:[^"\\]|\\.)*)"', op.line)
    message = match.group(1) if match else ""
    said = '"[simgpu] kernel %s: assertion failed: %s\\n"'
    t.loop(
        condition.shape,
        lambda i: (
            f'if(!{condition.at(i)}) {{fprintf(stderr,{said},KNAME,"{message}"); return 710;}}'
        ),
    )
    return []


HANDLERS: Mapping[str, Handler] = {
    "tt.addptr": _add_pointer,
    "tt.assert": _assert,
    "tt.atomic_cas": _compare_and_swap,
    "tt.atomic_rmw": _atomic_update,
    "tt.load": _load,
    "tt.store": _store,
}

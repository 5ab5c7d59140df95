"""Operations that make tensors of nothing or of others' elements, and what needs no C at all."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .translator import Handler, Translator, TritonOperation
from .types import TensorType, UnsupportedError, is_pointer, literal, parse_type
from .view import CValue, contiguous


def _result_type(op: TritonOperation) -> TensorType:
    """The type behind the arrow."""
    return parse_type(op.type.split("->")[1])


def _attribute(pattern: str, op: TritonOperation) -> str:
    match = re.search(pattern, op.text)
    if match is None:
        raise UnsupportedError(op.line[:80])
    return match.group(1)


def _axis(op: TritonOperation) -> int:
    return int(_attribute(r"axis = (\d+)", op))


def _shape_of(view: CValue) -> tuple[int, ...]:
    if view.shape is None:
        raise UnsupportedError("a scalar in the place of a tensor")
    return view.shape


# ---- of nothing


def _constant(t: Translator, op: TritonOperation) -> CValue:
    text = re.sub(r"\{.*\}", "", op.text).strip()
    if text in ("true", "false"):
        return CValue.same(str(int(text == "true")), None, "i1")
    shape, kind = parse_type(op.type)
    text = re.sub(r"^dense<(.*)>$", r"\1", text)
    if not text.startswith(("[", '"')):
        return CValue.same(literal(text, kind), shape, kind)
    assert shape is not None
    result = t.array(shape, kind)
    for i, element in enumerate(re.findall(r"[^\[\],\s]+", text)):
        t.emit(f"{result.name}[{i}]={literal(element, kind)};")
    return result


def _poison(t: Translator, op: TritonOperation) -> CValue:
    """Any value: nothing looks at that of a ``poison``."""
    shape, kind = parse_type(op.type)
    return CValue.same("NULL" if is_pointer(kind) else "0", shape, kind)


def _program_id(t: Translator, op: TritonOperation) -> CValue:
    return CValue.same("pid_" + op.text.split()[0], None, "i32")


def _number_of_programs(t: Translator, op: TritonOperation) -> CValue:
    dimension = "xyz".index(op.text.split()[0])
    return CValue.same(f"((int32_t)grid[{dimension}])", None, "i32")


def _make_range(t: Translator, op: TritonOperation) -> CValue:
    shape, kind = parse_type(op.type)
    start = int(_attribute(r"start = (-?\d+)", op))
    assert shape is not None
    result = t.array(shape, kind)
    t.loop(shape, lambda i: f"{result.at(i)} = {start}+{i[0]};")
    return result


# ---- other views of the same elements


def _splat(t: Translator, op: TritonOperation) -> CValue:
    shape, kind = _result_type(op)
    return CValue.same(op.operands[0].at([]), shape, kind)


def _unsplat(t: Translator, op: TritonOperation) -> CValue:
    source = op.operands[0]
    return CValue.same(source.first(), None, source.type)


def _expand_dims(t: Translator, op: TritonOperation) -> CValue:
    axis, source = _axis(op), op.operands[0]
    shape, strides = _shape_of(source), source.strides
    return CValue(
        source.name,
        (*shape[:axis], 1, *shape[axis:]),
        source.type,
        (*strides[:axis], 0, *strides[axis:]),
        source.store,
    )


def _broadcast(t: Translator, op: TritonOperation) -> CValue:
    shape, kind = _result_type(op)
    source = op.operands[0]
    sizes = zip(source.strides, _shape_of(source), shape or (), strict=True)
    strides = tuple(stride if before == after else 0 for stride, before, after in sizes)
    return CValue(source.name, shape, kind, strides, source.store)


def _reshape(t: Translator, op: TritonOperation) -> CValue:
    shape, kind = _result_type(op)
    source = op.operands[0]
    if source.store is None:
        return CValue.same(source.name, shape, kind)
    source = t.dense(source)
    assert shape is not None
    return CValue(source.name, shape, kind, contiguous(shape), source.store)


def _transpose(t: Translator, op: TritonOperation) -> CValue:
    source = op.operands[0]
    order = [int(i) for i in _attribute(r"order = array<i32: ([\d, ]+)>", op).split(",")]
    shape = _shape_of(source)
    return CValue(
        source.name,
        tuple(shape[i] for i in order),
        source.type,
        tuple(source.strides[i] for i in order),
        source.store,
    )


# ---- elements of others in another order


def _concatenate(t: Translator, op: TritonOperation) -> CValue:
    shape, kind = _result_type(op)
    assert shape is not None
    result = t.array(shape, kind)
    length = _shape_of(op.operands[0])[0]
    for k, part in enumerate(op.operands):
        _copy_behind(t, result, k * length, part)
    return result


def _copy_behind(t: Translator, target: CValue, begin: int, source: CValue) -> None:
    t.loop(source.shape, lambda i: f"{target.name}[{begin}+{i[0]}] = {source.at(i)};")


def _join(t: Translator, op: TritonOperation) -> CValue:
    """Two tensors along a new last dimension."""
    shape, kind = _result_type(op)
    assert shape is not None
    result = t.array(shape, kind)
    for k, part in enumerate(op.operands):
        _copy_to_last(t, result, k, part)
    return result


def _copy_to_last(t: Translator, target: CValue, last: int, source: CValue) -> None:
    t.loop(source.shape, lambda i: f"{target.at([*i, str(last)])} = {source.at(i)};")


def _split(t: Translator, op: TritonOperation) -> list[CValue]:
    """Two tensors of one with a last dimension of two."""
    source = t.dense(op.operands[0])
    results = []
    for k in range(2):
        part = t.array(_shape_of(source)[:-1], source.type)
        _copy_from_last(t, part, source, k)
        results.append(part)
    return results


def _copy_from_last(t: Translator, target: CValue, source: CValue, last: int) -> None:
    t.loop(target.shape, lambda i: f"{target.at(i)} = {source.at([*i, str(last)])};")


def _gather(t: Translator, op: TritonOperation) -> CValue:
    axis = _axis(op)
    source, index = t.dense(op.operands[0]), op.operands[1]
    result = t.array(_shape_of(index), source.type)

    def assignment(i: list[str]) -> str:
        place = [*i[:axis], index.at(i), *i[axis + 1 :]]
        return f"{result.at(i)} = {source.at(place)};"

    t.loop(index.shape, assignment)
    return result


def _dot(t: Translator, op: TritonOperation) -> CValue:
    """A product of matrices, or of batches of them, beside which something is added."""
    a, b, c = op.operands
    result = t.array(_shape_of(c), c.type)
    k = t.new_name("i")
    length = _shape_of(a)[-1]
    sum_type = {"f64": "double", "i32": "int32_t"}.get(c.type, "float")

    def assignment(i: list[str]) -> str:
        left, right = a.at([*i[:-1], k]), b.at([*i[:-2], k, i[-1]])
        return (
            f"{sum_type} t={c.at(i)}; "
            f"for(long {k}=0;{k}<{length};{k}++) t+=({sum_type}){left}*({sum_type}){right}; "
            f"{result.at(i)}=t;"
        )

    t.loop(c.shape, assignment)
    return result


def _nothing(t: Translator, op: TritonOperation) -> list[CValue]:
    return []


HANDLERS: Mapping[str, Handler] = {
    "arith.constant": _constant,
    "gpu.barrier": _nothing,
    "ttg.barrier": _nothing,  # Triton 3.7's
    "llvm.intr.assume": _nothing,
    "tt.broadcast": _broadcast,
    "tt.cat": _concatenate,
    "tt.dot": _dot,
    "tt.expand_dims": _expand_dims,
    "tt.gather": _gather,
    "tt.get_num_programs": _number_of_programs,
    "tt.get_program_id": _program_id,
    "tt.join": _join,
    "tt.make_range": _make_range,
    "tt.print": _nothing,
    "tt.reshape": _reshape,
    "tt.splat": _splat,
    "tt.split": _split,
    "tt.trans": _transpose,
    "tt.unsplat": _unsplat,
    "ub.poison": _poison,
}

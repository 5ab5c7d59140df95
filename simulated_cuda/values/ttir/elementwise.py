"""Operations that make each element of those at the same place: arithmetic and conversions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .libdevice import function_of_float, libdevice
from .translator import Handler, Translator, TritonOperation
from .types import (
    BITS,
    C_TYPES,
    NARROW_FLOATS,
    UnsupportedError,
    is_pointer,
    parse_type,
    unsigned_c_type,
)
from .view import CValue

# In all tables: {a} and {b} are the operands, {w} the width of their type in bits. A shift by more
# than the width and a division by zero, for which C has no answer, give what they say here.
_SIGNED = {
    "addi": "{a}+{b}",
    "subi": "{a}-{b}",
    "muli": "{a}*{b}",
    "andi": "{a}&{b}",
    "ori": "{a}|{b}",
    "xori": "{a}^{b}",
    "shli": "{b}>={w}?0:{a}<<{b}",
    "shrsi": "{a}>>({b}>={w}?{w}-1:{b})",
    "maxsi": "{a}>{b}?{a}:{b}",
    "minsi": "{a}<{b}?{a}:{b}",
    "divsi": "{b}==0?0:{b}==-1?-{a}:{a}/{b}",
    "remsi": "{b}==0||{b}==-1?0:{a}%{b}",
}
_UNSIGNED = {
    "divui": "{b}==0?0:{a}/{b}",
    "remui": "{b}==0?0:{a}%{b}",
    "shrui": "{b}>={w}?0:{a}>>{b}",
    "maxui": "{a}>{b}?{a}:{b}",
    "minui": "{a}<{b}?{a}:{b}",
}
# {f} is the end of the names of C's functions: "f" for float.
_FLOAT = {
    "addf": "{a}+{b}",
    "subf": "{a}-{b}",
    "mulf": "{a}*{b}",
    "divf": "{a}/{b}",
    "precise_divf": "{a}/{b}",
    "remf": "fmod{f}({a},{b})",
    "maximumf": "NANMAX({a},{b})",
    "minimumf": "NANMIN({a},{b})",
    "maxnumf": "fmax{f}({a},{b})",
    "minnumf": "fmin{f}({a},{b})",
}
_COMPARE_INTEGERS = {
    "eq": "==",
    "ne": "!=",
    "slt": "<",
    "sle": "<=",
    "sgt": ">",
    "sge": ">=",
    "ult": "<",
    "ule": "<=",
    "ugt": ">",
    "uge": ">=",
}
# Those that begin with "u" are true also where one of them is NaN.
_COMPARE_FLOATS = {
    "oeq": "{a}=={b}",
    "ogt": "{a}>{b}",
    "oge": "{a}>={b}",
    "olt": "{a}<{b}",
    "ole": "{a}<={b}",
    "one": "({a}<{b}||{a}>{b})",
    "ord": "({a}=={a}&&{b}=={b})",
    "ueq": "!({a}<{b}||{a}>{b})",
    "ugt": "!({a}<={b})",
    "uge": "!({a}<{b})",
    "ult": "!({a}>={b})",
    "ule": "!({a}>{b})",
    "une": "{a}!={b}",
    "uno": "({a}!={a}||{b}!={b})",
}
_FUNCTIONS = {
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "cbrt": "cbrt",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "atan2": "atan2",
    "sinh": "sinh",
    "cosh": "cosh",
    "tanh": "tanh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erf": "erf",
    "erfc": "erfc",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "round",
    "fma": "fma",
    "copysign": "copysign",
    "absf": "fabs",
    "powf": "pow",
    "precise_sqrt": "sqrt",
    "roundeven": "nearbyint",
    "rsqrt": "rsqrt_",
}
"""Functions of C's library, for double."""
_CONVERSIONS = {
    "arith": {
        "extsi",
        "extui",
        "trunci",
        "sitofp",
        "uitofp",
        "fptosi",
        "fptoui",
        "truncf",
        "extf",
        "bitcast",
        "index_cast",
        "index_castui",
    },
    "tt": {"bitcast", "fp_to_fp", "int_to_ptr", "ptr_to_int"},
}


def elementwise(t: Translator, op: TritonOperation) -> CValue | list[CValue]:
    """Translate an operation of arithmetic; raises UnsupportedError for one that is not known."""
    if op.short_name in _CONVERSIONS.get(op.dialect, ()):
        return _convert(t, op)
    if op.short_name in _OTHERS:
        return _OTHERS[op.short_name](t, op)
    expression = _expression(op)
    if expression is None:
        raise UnsupportedError(op.name)
    return t.elementwise(_shape(op), op.operands[0].type, expression, op.operands)


def _shape(op: TritonOperation) -> tuple[int, ...] | None:
    return next((operand.shape for operand in op.operands if operand.shape is not None), None)


def _expression(op: TritonOperation) -> Callable[..., str] | None:
    """Return a function from operands in C to a result of their type in C; None if unknown."""
    name = op.short_name
    kind = op.operands[0].type if op.operands else ""
    width = BITS.get(kind, 0)
    if name in _FLOAT:
        end = "" if kind == "f64" else "f"
        return lambda a, b: _FLOAT[name].format(a=a, b=b, f=end)
    if name in _SIGNED:
        return lambda a, b: _SIGNED[name].format(a=a, b=b, w=width)
    if name in _UNSIGNED:
        cast = unsigned_c_type(kind)
        return lambda a, b: _UNSIGNED[name].format(a=f"(({cast}){a})", b=f"(({cast}){b})", w=width)
    if name == "negf":
        return lambda a: f"-{a}"
    if name == "absi":
        return lambda a: f"{a}<0?-{a}:{a}"
    if name == "mulhiui" and width == 32:
        return lambda a, b: f"((uint64_t)(uint32_t){a}*(uint32_t){b})>>32"
    if name == "mulhiui":
        return lambda a, b: f"((unsigned __int128)(uint64_t){a}*(uint64_t){b})>>64"
    if name == "clampf":
        keeps_nan = "all" in op.text  # propagateNan = all
        form = "NANMIN(NANMAX({x},{low}),{high})" if keeps_nan else "fmin(fmax({x},{low}),{high})"
        return lambda x, low, high: form.format(x=x, low=low, high=high)
    if name in _FUNCTIONS and (op.dialect == "math" or name.startswith("precise")):
        function = _FUNCTIONS[name]
        if kind != "f64":
            function = function_of_float(function)
        return lambda *arguments: f"{function}({','.join(arguments)})"
    return None


# ---- operations whose result has another type than the operands


def _extended_product(t: Translator, op: TritonOperation) -> list[CValue]:
    """Both halves of a product of integers, the lower one first."""
    kind = op.operands[0].type
    unsigned = op.short_name == "mului_extended"
    cast = f"(unsigned __int128)({unsigned_c_type(kind)})" if unsigned else "(__int128)"
    width = BITS.get(kind, 0)
    return [
        t.elementwise(_shape(op), kind, lambda a, b: f"{cast}{a}*{cast}{b}", op.operands),
        t.elementwise(
            _shape(op), kind, lambda a, b: f"({cast}{a}*{cast}{b})>>{width}", op.operands
        ),
    ]


def _predicate(op: TritonOperation) -> str:
    match = re.match(r"\s*(\w+),", op.text)
    if match is None:
        raise UnsupportedError(op.line[:80])
    return match.group(1)


def _compare_integers(t: Translator, op: TritonOperation) -> CValue:
    predicate = _predicate(op)
    kind = op.operands[0].type
    cast = ""
    if predicate[0] == "u":
        cast = f"({unsigned_c_type(kind)})"
    elif kind == "i1" and predicate[0] == "s":
        cast = "-(int)"  # a signed bit is 0 or -1
    operator = _COMPARE_INTEGERS[predicate]
    return t.elementwise(
        _shape(op), "i1", lambda a, b: f"{cast}{a}{operator}{cast}{b}", op.operands
    )


def _compare_floats(t: Translator, op: TritonOperation) -> CValue:
    form = _COMPARE_FLOATS[_predicate(op)]
    return t.elementwise(_shape(op), "i1", lambda a, b: form.format(a=a, b=b), op.operands)


def _select(t: Translator, op: TritonOperation) -> CValue:
    chosen = op.operands[1]
    return t.elementwise(chosen.shape, chosen.type, lambda c, a, b: f"{c}?{a}:{b}", op.operands)


def _library_function(t: Translator, op: TritonOperation) -> CValue:
    match = re.search(r'symbol = "__nv_(\w+)"', op.text)
    if match is None:
        raise UnsupportedError(op.text[:120])
    symbol = match.group(1)
    shape, kind = parse_type(op.type.split("->")[1])
    return t.elementwise(shape, kind, lambda *a: libdevice(symbol, a), op.operands)


_OTHERS: Mapping[str, Handler] = {
    "cmpf": _compare_floats,
    "cmpi": _compare_integers,
    "extern_elementwise": _library_function,
    "mulsi_extended": _extended_product,
    "mului_extended": _extended_product,
    "select": _select,
}


# ---- conversions


def _convert(t: Translator, op: TritonOperation) -> CValue:
    shape, target = parse_type(re.split(r" to | -> ", op.type)[1])
    source = op.operands[0].type
    return t.elementwise(shape, target, _conversion(op.short_name, source, target), op.operands[:1])


def _conversion(name: str, source: str, target: str) -> Callable[[str], str]:
    """Function from an operand in C to its conversion; just the operand where C converts itself."""
    if name == "bitcast" and not is_pointer(source) and source != target:
        return lambda a: _from_bits(target, _bits(source, a))
    if name in ("extui", "uitofp", "index_castui"):
        return lambda a: f"({unsigned_c_type(source)}){a}"
    if name in ("extsi", "sitofp") and source == "i1":
        return lambda a: f"-(int){a}"
    if name == "trunci" and target == "i1":
        return lambda a: f"{a}&1"
    if name == "fptosi" and target == "i1":
        return lambda a: f"{a}!=0"
    if name == "fptosi":
        return lambda a: f"CLIP({a},{BITS[target]})"
    if name == "fptoui":
        return lambda a: f"UCLIP({a})"
    return lambda a: a


def _bits(kind: str, value: str) -> str:
    """An unsigned integer with the bits of a value."""
    if kind in NARROW_FLOATS:
        return f"st_{NARROW_FLOATS[kind]}({value})"
    if kind == "f32":
        return f"u_of_f({value})"
    if kind == "f64":
        return f"(union{{double d;uint64_t u;}}){{{value}}}.u"
    return f"({unsigned_c_type(kind)}){value}"


def _from_bits(kind: str, bits: str) -> str:
    """The value that has these bits."""
    if kind in NARROW_FLOATS:
        return f"ld_{NARROW_FLOATS[kind]}({bits})"
    if kind == "f32":
        return f"f_of_u({bits})"
    if kind == "f64":
        return f"(union{{uint64_t u;double d;}}){{{bits}}}.d"
    return f"({C_TYPES[kind]})({bits})"

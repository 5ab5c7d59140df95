"""Functions of CUDA's libdevice in C.

https://docs.nvidia.com/cuda/libdevice-users-guide. A name that ends with ``f`` is of float, others
are of double; most are those of C's library.
"""

from __future__ import annotations

from collections.abc import Sequence

from .types import UnsupportedError

_NOT_A_NUMBER = "({0})!=({0})"
_INFINITE = "isinf({0})!=0"
_FINITE = "isfinite({0})!=0"
_SIGN_BIT = "signbit({0})!=0"
_MAGNITUDE = "({0})<0?-({0}):({0})"
_EXPRESSIONS = {
    "isnan": _NOT_A_NUMBER,
    "isnand": _NOT_A_NUMBER,
    "isinf": _INFINITE,
    "isinfd": _INFINITE,
    "finite": _FINITE,
    "isfinite": _FINITE,
    "isfinited": _FINITE,
    "signbit": _SIGN_BIT,
    "signbitd": _SIGN_BIT,
    "abs": _MAGNITUDE,
    "llabs": _MAGNITUDE,
    "ffs": "__builtin_ffs({0})",
    "popc": "__builtin_popcount({0})",
    "clz": "(({0})?__builtin_clz({0}):32)",
    "llrint": "llrint({0})",
    "llround": "llround({0})",
    "fadd_rn": "({0})+({1})",
    "dadd_rn": "({0})+({1})",
    "fsub_rn": "({0})-({1})",
    "dsub_rn": "({0})-({1})",
    "fmul_rn": "({0})*({1})",
    "dmul_rn": "({0})*({1})",
    "fdiv_rn": "({0})/({1})",
    "ddiv_rn": "({0})/({1})",
    "fast_fdivide": "({0})/({1})",
    "mul24": "({0})*({1})",
    "fsqrt_rn": "sqrtf({0})",
    "sqrt_rn": "sqrt({0})",
    "float_as_int": "(int32_t)u_of_f({0})",
    "int_as_float": "f_of_u({0})",
    "float2int_rn": "(int32_t)nearbyintf({0})",
    "powi": "pow({0},{1})",
    "normcdf": "0.5*erfc(-({0})*0.70710678118654752)",
}
"""C expressions of functions that are no call of one C function."""
_OTHER_NAMES = {
    "rsqrt": "rsqrt_",
    "rint": "nearbyint",
    "fast_exp": "exp",
    "fast_log": "log",
    "fast_sin": "sin",
    "fast_cos": "cos",
    "fast_pow": "pow",
    "fast_tanh": "tanh",
}
"""Functions that C's library, or prelude.h, has by another name."""
_MISSING = {
    "i0",
    "cyl_bessel_i0",
    "i1",
    "cyl_bessel_i1",
    "normcdfinv",
    "erfinv",
    "erfcx",
    "erfcinv",
}
"""Functions that C's library does not have."""


def libdevice(symbol: str, arguments: Sequence[str]) -> str:
    """A call of ``__nv_SYMBOL`` in C; raises UnsupportedError where there is none."""
    is_double = not symbol.endswith("f") or symbol == "erf"
    base = symbol if is_double else symbol[:-1]
    for name in (symbol, base):
        if name in _EXPRESSIONS:
            return _EXPRESSIONS[name].format(*arguments)
    if base in _MISSING:
        raise UnsupportedError("libdevice " + symbol)
    function = _OTHER_NAMES.get(base, base)
    if not is_double:
        function = function_of_float(function)
    return f"{function}({','.join(arguments)})"


def function_of_float(function: str) -> str:
    """The name of a function of double, for float: prelude.h's own end with an underscore."""
    return function[:-1] + "f_" if function.endswith("_") else function + "f"

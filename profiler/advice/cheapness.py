"""How cheap operators are to run again, by their names."""

from __future__ import annotations

import functools
import re

# Words of operator names, digits and underscores left out: `conv2d` and `_convolution` have one,
# `upsample_bilinear2d`, `lgamma` and `maximum` have none.
_HEAVY = frozenset(
    (
        *("mm", "bmm", "addmm", "baddbmm", "addbmm", "smm", "hspmm", "sspaddmm", "mv", "addmv"),
        *("dot", "vdot", "tensordot", "matmul", "linear", "einsum", "conv", "convolution"),
        *("attention", "lstm", "gru", "rnn", "fft", "cdist", "pdist"),
        *("sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique"),
        *("cholesky", "svd", "qr", "lu", "ldl", "eig", "eigh", "eigvals", "det", "slogdet"),
        *("inv", "inverse", "pinverse", "solve", "lstsq"),
    )
)
_REDUCING = frozenset(
    (
        *("sum", "nansum", "mean", "nanmean", "prod", "var", "std", "norm", "softmax", "pool"),
        *("amax", "amin", "aminmax", "logsumexp"),
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"),
    )
)


@functools.cache
def cheapness(op: str | None) -> float:
    """From 0 (never) to 1."""
    namespace, _, rest = (op or "").partition(".")
    name = rest.partition(".")[0]
    if namespace not in ("aten", "prims") or not name:
        return 0.0
    words = set(re.findall("[a-z]+", name))
    if words & _HEAVY:
        return 0.2
    # As words, these two are in names of elementwise operators too (`clamp_max`).
    return 0.7 if words & _REDUCING or name in ("max", "min") else 1.0

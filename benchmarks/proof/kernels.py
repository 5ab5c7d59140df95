"""The kernel table: what the card's own kernels reach, for estimates of time.

A row of kind ``gemm`` has ``dtype``, ``m``, ``n``, ``k``; of ``attention`` ``dtype``,
``direction``, ``batch``, ``heads``, ``tokens``, ``size``; of ``bandwidth`` ``operator``, ``dtype``.
Each has ``bytes`` of one call (every input read and every output written once) and the first two
its ``flops``; its ``us`` as samples with their median and quartiles; ``first_us``, of the host in
the first call; and ``per_second``, the rate at the median, of ``flops`` where it has them, else of
``bytes``. ``launch``, ``graph`` (with
``nodes``) and ``copy`` (with ``operator``, ``bytes``) have ``host_us`` and ``device_us``. What
failed is a row of kind ``failed`` with an ``error``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from proof.common import Part, Rows, captured, device_us, host_us, side_stream, spread

SAMPLES = 7
CALLS_US = 2000.0
"""So long all calls of one sample take, about."""
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
LAYERS = (
    *((768, 768), (2304, 768), (3072, 768), (768, 3072), (50304, 768)),
    *((4096, 4096), (14336, 4096), (4096, 14336)),
)
"""Outputs and inputs of linear layers: GPT-2 124M's and Llama 8B's."""
# Rows of training first, as there may be no time for all.
GEMMS = tuple(itertools.product((2048, 8192, 256, 16, 1), LAYERS))
ATTENTIONS = (
    *((8, 12, 512, 64), (8, 12, 1024, 64), (4, 16, 1024, 64), (2, 32, 2048, 64)),
    *((1, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128)),
)
BYTES = tuple(2**n for n in range(14, 31, 2))


def rate(rows: Rows, calls: Sequence[Callable[[], Any]], **what: Any) -> None:
    """Write what one of ``calls`` takes. They do the same with other memory and take turns, so that
    the cache is of no help that it would not be in a program."""
    try:
        first = host_us(calls[0])
        least = max(1.0, min(device_us(calls[0]) for _ in range(3)))
        turns = 1 if rows.simulated else max(1, int(CALLS_US / least / len(calls)))
        graph = captured(lambda: [call() for _ in range(turns) for call in calls])
        graph.replay()
        us = spread([device_us(graph.replay) / turns / len(calls) for _ in range(SAMPLES)])
    except Exception as error:
        rows.add(kind="failed", what=str(what), error=repr(error)[:300])
        return
    work = what.get("flops", what["bytes"])
    rows.add(**what, us=us, first_us=first, per_second=work / us["median"] * 1e6)


def sets(nbytes: int) -> range:
    """As many sets of operands of that size as the second-level cache cannot hold together."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return range(max(1, min(32, 3 * cache // nbytes)))


def gemm(rows: Rows, dtype: torch.dtype) -> None:
    """x @ w.T, as a linear layer without bias: (m, k) and (n, k)."""
    for m, (n, k) in GEMMS[:4] if rows.simulated else GEMMS:
        nbytes = (m * k + n * k + m * n) * dtype.itemsize
        make = partial(torch.randn, dtype=dtype, device="cuda")
        calls = [partial(F.linear, make(m, k), make(n, k)) for _ in sets(nbytes)]
        flops = 2 * m * n * k
        what = {"dtype": str(dtype), "m": m, "n": n, "k": k, "flops": flops, "bytes": nbytes}
        rate(rows, calls, kind="gemm", **what)


def attention(rows: Rows) -> None:
    """Causal scaled dot product attention, by the kernel that torch chooses."""
    shapes = ATTENTIONS[:1] if rows.simulated else ATTENTIONS
    for dtype, (batch, heads, tokens, size) in itertools.product(DTYPES[::2], shapes):
        # Leaves: autograd would make a view's gradient on the stream that the view is of.
        make = partial(torch.randn, batch, heads, tokens, size, dtype=dtype, device="cuda")
        q, k, v = (make(requires_grad=True) for _ in range(3))
        forward = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
        # Autograd runs a backward on the stream of its forward, and it is captured on this one.
        with torch.cuda.stream(side_stream()):
            out = forward()
        gradient = torch.randn_like(out)
        backward = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
        # Two products, of which half is masked; the backward has five.
        flops = 2 * batch * heads * tokens**2 * size
        what = {
            "kind": "attention",
            "bytes": 4 * q.nbytes,
            "batch": batch,
            "heads": heads,
            "tokens": tokens,
            "size": size,
            "dtype": str(dtype),
        }
        rate(rows, [torch.no_grad()(forward)], direction="forward", flops=flops, **what)
        rate(rows, [backward], direction="backward", flops=flops * 5 // 2, **what)


def in_rows(x: Tensor) -> Tensor:
    return x.view(-1, min(1024, x.numel()))


OPERATORS: dict[str, tuple[Callable[[Tensor], Callable[[], Any]], int]] = {
    "pointwise": (lambda x: partial(torch.add, x, torch.ones_like(x), out=torch.empty_like(x)), 3),
    "reduction": (lambda x: partial(torch.sum, in_rows(x), -1), 1),
    "softmax": (lambda x: partial(torch.softmax, in_rows(x), -1), 2),
    "copy": (lambda x: partial(torch.empty_like(x).copy_, x), 2),
    "embedding": (
        lambda x: partial(F.embedding, torch.randperm(len(in_rows(x)), device="cuda"), in_rows(x)),
        2,
    ),
}
"""Each made for its largest operand, and how often that many bytes are read or written."""


def bandwidth(rows: Rows) -> None:
    """Operators that move memory."""
    sizes = BYTES[:2] if rows.simulated else BYTES
    for operator, dtype, nbytes in itertools.product(OPERATORS, DTYPES[:2], sizes):
        make, often = OPERATORS[operator]
        n = nbytes // dtype.itemsize
        calls = [make(torch.randn(n, dtype=dtype, device="cuda")) for _ in sets(often * nbytes)]
        rate(
            rows,
            calls,
            kind="bandwidth",
            operator=operator,
            dtype=str(dtype),
            bytes=often * nbytes,
        )


def cost(rows: Rows, act: Callable[[], Any], each: int = 1, **what: Any) -> None:
    """Write what an act takes of the host, and of the device, by ``each`` of what it does."""
    act()
    on_host = [host_us(act) / each for _ in range(3 * SAMPLES)]
    on_device = [device_us(act) / each for _ in range(3 * SAMPLES)]
    rows.add(**what, host_us=spread(on_host), device_us=spread(on_device))


def launches(rows: Rows) -> None:
    """A launch, the launch of a graph by its kernels, and copies between host and device."""
    x = torch.ones(32, device="cuda")
    sizes, many = (BYTES[:2], 20) if rows.simulated else (BYTES[:-1], 500)
    cost(rows, lambda: [x.add_(1) for _ in range(many)], many, kind="launch", operator="add_ of 32")
    for nodes in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000):
        graph = captured(lambda nodes=nodes: [x.add_(1) for _ in range(nodes)])
        cost(rows, graph.replay, kind="graph", nodes=nodes)
    for pinned, nbytes in itertools.product((True, False), sizes):
        there = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        here = torch.ones(nbytes, dtype=torch.uint8, pin_memory=pinned)
        word = "pinned" if pinned else "pageable"
        for to, target, source in (("device", there, here), ("host", here, there)):
            act = partial(target.copy_, source, non_blocking=pinned)
            cost(rows, act, kind="copy", operator=f"to {to}, {word}", bytes=nbytes)


PART = Part(
    name="kernels",
    module="proof.kernels",
    about=" ".join(__doc__.split("\n\n")[1].split()),
    # A case a type of products: float32's hung on an H100 and an H200 (docs/real-gpu.md).
    cases={
        "launches": launches,
        "bandwidth": bandwidth,
        "attention": attention,
        **{f"gemm {str(t).removeprefix('torch.')}": partial(gemm, dtype=t) for t in DTYPES[::-1]},
    },
    limit_s=90.0,
    alone=lambda case: True,
)

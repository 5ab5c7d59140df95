"""Programs that draw random numbers and know by arithmetic what they must return.

Every operator here is positively homogeneous in what it is given (linear, where it has no kink),
and gets ``x * s``; what it returns is multiplied by ``t``. Both lie inside of the function that
is checkpointed. So the loss is homogeneous of degree one in ``s`` and in ``t``, and by Euler

    loss == (s * s.grad).sum() == (t * t.grad).sum()

whatever numbers were drawn, if the backward used the ones of its forward: for ``s`` those that the
operator's backward has, for ``t`` those that are drawn again where the block is recomputed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

HEADS, TOKENS, WIDTH = 4, 16, 32
SHAPE = (2, TOKENS, WIDTH)

Operator = Callable[[Tensor, Tensor], Tensor]


def _attention(x: Tensor, y: Tensor) -> Tensor:
    """Linear in the values, which is what ``y`` becomes."""
    q, v = (a.view(2, TOKENS, HEADS, -1).transpose(1, 2) for a in (x, y))
    out = F.scaled_dot_product_attention(q, q, v, dropout_p=0.3)
    return out.transpose(1, 2).reshape(SHAPE)


def _forked(x: Tensor, y: Tensor) -> Tensor:
    """What is drawn in the fork is drawn again after it, and then more is."""
    with torch.random.fork_rng(devices=[0]):
        y = F.dropout(y, 0.3)
    return F.dropout(y, 0.2) * torch.rand_like(y)


OPERATORS: dict[str, Operator] = {
    "attention": _attention,
    "dropout": lambda x, y: F.dropout(y, 0.3),
    "rand": lambda x, y: y * torch.rand_like(y),
    "randn": lambda x, y: y * (torch.randn(SHAPE, device=y.device) + 2),
    "bernoulli": lambda x, y: y * torch.bernoulli(torch.full_like(x, 0.7)),
    "rrelu": lambda x, y: F.rrelu(y, training=True),
    "fork_rng": _forked,
}
"""By name: operators that are given ``x`` and what they are homogeneous in."""


def _all(x: Tensor, y: Tensor) -> Tensor:
    for name in ("attention", "dropout", "rand", "randn", "bernoulli", "rrelu"):
        y = OPERATORS[name](x, y)
    return y


OPERATORS["all"] = _all


def _keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op is torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS: dict[str, Callable[..., Any]] = {
    "none": lambda f, *args: f(*args),
    "outer-reentrant": lambda f, *args: f(*args),
    "outer-non-reentrant": lambda f, *args: f(*args),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "non-reentrant": functools.partial(checkpoint, use_reentrant=False),
    "selective": functools.partial(
        checkpoint,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, _keep_products),
    ),
}


@dataclass
class Step:
    """What one step of a program gave: its loss and the two sums that must be the same."""

    loss: float
    s: float
    t: float

    @property
    def right(self) -> bool:
        return all(abs(self.loss - a) <= 1e-4 * abs(self.loss) + 1e-4 for a in (self.s, self.t))


class Program:
    """A block of ``operator`` under ``how``, compiled.

    Args:
        compile: keyword arguments of ``torch.compile``.
        operator: which one, or a function of the same kind.
        how: which checkpointing.
        micro_batches: how many forwards and backwards a step has.
        extra: more arguments of the block's operator, as a generator.
    """

    def __init__(
        self,
        compile: dict[str, Any] | None,
        operator: str | Callable[..., Tensor],
        how: str,
        micro_batches: int = 1,
        extra: tuple[Any, ...] = (),
    ) -> None:
        op = OPERATORS[operator] if isinstance(operator, str) else operator
        device = torch.device("cuda", 0)
        numbers = torch.Generator().manual_seed(1)
        self.s, self.t = (torch.nn.Parameter(torch.ones(WIDTH, device=device)) for _ in range(2))
        self.w = torch.randn(WIDTH, WIDTH, generator=numbers).to(device) / WIDTH**0.5
        self.v = torch.rand(WIDTH, generator=numbers).to(device) + 1
        self.x = torch.randn(SHAPE, generator=numbers).to(device).requires_grad_()
        self.micro_batches, self.extra = micro_batches, extra

        def block(x: Tensor, s: Tensor, t: Tensor, *extra: Any) -> Tensor:
            return op(x, (x @ self.w) * s, *extra) * t

        def f(x: Tensor, s: Tensor, t: Tensor, v: Tensor, *extra: Any) -> Tensor:
            out: Tensor = CHECKPOINTS[how](block, x, s, t, *extra)
            return (out * v).sum()

        self.f = f if compile is None else torch.compile(f, **compile)
        if how.startswith("outer-"):
            self.f = functools.partial(checkpoint, self.f, use_reentrant="non" not in how)

    def step(self) -> Step:
        torch.compiler.cudagraph_mark_step_begin()
        self.s.grad = self.t.grad = self.x.grad = None
        loss = 0.0
        for _ in range(self.micro_batches):
            out = self.f(self.x, self.s, self.t, self.v, *self.extra)
            out.backward()
            loss += out.item()
        assert self.s.grad is not None
        assert self.t.grad is not None
        return Step(loss, (self.s * self.s.grad).sum().item(), (self.t * self.t.grad).sum().item())

    def steps(self, n: int, seed: int = 0) -> list[Step]:
        torch.manual_seed(seed)
        return [self.step() for _ in range(n)]


@contextlib.contextmanager
def same_numbers_in_all_kernels() -> Iterator[None]:
    """Inductor of torch 2.13 takes other numbers for one seed in a kernel with one dimension than
    in any other, so that it is wrong where it recomputes, with graphs and without
    (https://github.com/pytorch/pytorch/issues/198333). Here it does not."""
    from torch._inductor.codegen.triton import TritonOverrides

    if not torch.__version__.startswith("2.13"):
        yield
        return
    before = TritonOverrides._can_use_4x_random
    TritonOverrides._can_use_4x_random = staticmethod(lambda: False)  # type: ignore[method-assign]
    try:
        yield
    finally:
        TritonOverrides._can_use_4x_random = before  # type: ignore[method-assign]

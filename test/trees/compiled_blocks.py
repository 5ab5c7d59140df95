"""Small modules of which random programs for ``torch.compile`` are made, see ``compiled_programs``.

Each is linear in its parameter, and most are homogeneous in their input: ``f(a x) = a f(x)``
for positive ``a``, whatever they draw. Then by Euler the inner product of a parameter with its
gradient is the loss, if all that comes after is homogeneous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WIDTH = 16
HEADS = 2
Apply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """What a block does.

    Attributes:
        apply: of the input, (batch, ``WIDTH``), and the parameter.
        matrix: the parameter is one; otherwise it has ``WIDTH`` elements.
        homogeneous: in the input.
        random: it draws random numbers.
        exact: it works in float64.
        recomputable: it may be under ``checkpoint``.
    """

    apply: Apply
    matrix: bool = False
    homogeneous: bool = True
    random: bool = False
    exact: bool = True
    recomputable: bool = True


def _linear(x: Tensor, p: Tensor) -> Tensor:
    return x @ p


def _scale(x: Tensor, p: Tensor) -> Tensor:
    return x * p


def _dropout(x: Tensor, p: Tensor) -> Tensor:
    return F.dropout(x * p, 0.3)


def _uniform(x: Tensor, p: Tensor) -> Tensor:
    return x * p * torch.rand_like(x)


def _normal(x: Tensor, p: Tensor) -> Tensor:
    return x * p * (torch.randn_like(x) + 2)


def _coins(x: Tensor, p: Tensor) -> Tensor:
    return x * p * torch.bernoulli(torch.full_like(x, 0.7))


def _rrelu(x: Tensor, p: Tensor) -> Tensor:
    return F.rrelu(x * p, 0.1, 0.9, training=True)


def _drawn_in_place(x: Tensor, p: Tensor) -> Tensor:
    return torch.empty_like(x).uniform_(0.5, 1.5) * x * p


def _relu(x: Tensor, p: Tensor) -> Tensor:
    return F.leaky_relu(x * p, 0.2)


def _attention(x: Tensor, p: Tensor) -> Tensor:
    """Linear in the value."""
    v = (x * p).view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
    q = torch.full_like(v, 0.1)
    y = F.scaled_dot_product_attention(q, q, v, dropout_p=0.3)
    return y.transpose(1, 2).reshape(x.shape)


def _attention_of_itself(x: Tensor, p: Tensor) -> Tensor:
    y = (x * 0.1).view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
    y = F.scaled_dot_product_attention(y, y, y, dropout_p=0.2)
    return y.transpose(1, 2).reshape(x.shape) * p


def _views(x: Tensor, p: Tensor) -> Tensor:
    y = (x * p).t()
    y = y.reshape(2, -1).flip(0).reshape(x.shape)
    return torch.cat([y[:, 3:], y[:, :3]], 1)


def _in_place(x: Tensor, p: Tensor) -> Tensor:
    y = x * p
    y[:, :4].mul_(2)
    y.add_(x)
    y.t()[5:9].mul_(0.5)
    return y


def _sorted(x: Tensor, p: Tensor) -> Tensor:
    return (x * p).cumsum(1) * 0.25


def _gelu(x: Tensor, p: Tensor) -> Tensor:
    return F.gelu(x) * p


def _tanh(x: Tensor, p: Tensor) -> Tensor:
    return torch.tanh(x @ p) + x


def _norm(x: Tensor, p: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,)) * p


class _Doubles(torch.autograd.Function):
    """The derivative is its own affair."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor) -> Tensor:
        ctx.save_for_backward(x, p)
        return x * p * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, p = ctx.saved_tensors
        return g * p * 2, (g * x * 2).sum(0)


def _own_function(x: Tensor, p: Tensor) -> Tensor:
    return _Doubles.apply(x, p)  # type: ignore[no-any-return]


def _all_reduced(x: Tensor, p: Tensor) -> Tensor:
    """Of one process: the same."""
    import torch.distributed._functional_collectives as collectives

    y = collectives.all_reduce((x * p).detach(), "sum", group=torch.distributed.group.WORLD)
    return x * p + y - y.detach()


KINDS = {
    "linear": Kind(_linear, matrix=True),
    "scale": Kind(_scale),
    "dropout": Kind(_dropout, random=True),
    "uniform": Kind(_uniform, random=True),
    "normal": Kind(_normal, random=True),
    "coins": Kind(_coins, random=True),
    "rrelu": Kind(_rrelu, random=True),
    "drawn in place": Kind(_drawn_in_place, random=True),
    "relu": Kind(_relu),
    "attention": Kind(_attention, random=True, exact=False),
    "attention of itself": Kind(_attention_of_itself, homogeneous=False, random=True, exact=False),
    "views": Kind(_views),
    "in place": Kind(_in_place),
    "cumulative": Kind(_sorted),
    "gelu": Kind(_gelu, homogeneous=False),
    "tanh": Kind(_tanh, matrix=True, homogeneous=False),
    "norm": Kind(_norm, homogeneous=False),
    "own function": Kind(_own_function),
    "all-reduced": Kind(_all_reduced),
}

HOW = ("", "", "", "not reentrant", "reentrant", "selective")
"""How a block is recomputed."""


def _keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    kept = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    """One kind, once.

    Args:
        name: of the kind.
        how: see ``HOW``.
        dtype: of the parameter.
    """

    def __init__(self, name: str, how: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind = KINDS[name]
        self.how = how
        shape = (WIDTH, WIDTH) if self.kind.matrix else (WIDTH,)
        start = torch.rand(shape, dtype=dtype) + 0.5
        self.p = nn.Parameter(start / WIDTH if self.kind.matrix else start)

    def forward(self, x: Tensor) -> Tensor:
        if not self.how:
            return self.kind.apply(x, self.p)
        more: dict[str, Any] = {"use_reentrant": self.how == "reentrant"}
        if self.how == "selective":
            more["context_fn"] = functools.partial(
                create_selective_checkpoint_contexts, _keep_products
            )
        return checkpoint(self.kind.apply, x, self.p, **more)  # type: ignore[no-any-return]


class Model(nn.Module):
    """Blocks one after the other.

    Args:
        blocks: name and ``how`` of each.
        breaks: after which blocks the graph breaks.
        counts: it has a buffer that each call in training writes to.
        dtype: of everything.
    """

    def __init__(
        self,
        blocks: list[tuple[str, str]],
        breaks: frozenset[int],
        counts: bool,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(name, how, dtype) for name, how in blocks)
        self.breaks = breaks
        self.counts = counts
        self.register_buffer("calls", torch.zeros((), dtype=dtype))
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=dtype))
        self.calls: Tensor
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.counts and self.training:
            self.calls.add_(1)
            self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        for k, block in enumerate(self.blocks):
            x = block(x)
            if k in self.breaks:
                torch._dynamo.graph_break()
        return x

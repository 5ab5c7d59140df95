"""Forwards and their backwards in random programs, as AOTAutograd makes them of a model.

A *pair* computes ``x * w * r * s``, where ``r`` is random or not. It is linear in each of its
parameters ``w`` and ``s``, and in ``x``. So by Euler the inner product of a parameter and its
gradient is the loss, whatever was drawn, if the backward has the forward's ``r``: the oracle
needs no other implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from .program_functions import N


@dataclass(frozen=True)
class Pair:
    """A forward and its backward.

    Attributes:
        name: in messages.
        forward: of (s, w, x[, buffer][, generator]): the output and what is saved.
        backward: of (s, w, *saved, g[, generator]): gradients of s, w and x.
        homogeneous: it is linear in ``x``, too.
        buffer: it has a static input that it writes to.
        generator: each has a generator of its own, and draws the same.
        clears: what is saved dies in the backward, as AOTAutograd lets it: it runs once.
        saves_output: nobody may write to the output.
        random: it draws random numbers.
    """

    name: str
    forward: Callable[..., list[Tensor]]
    backward: Callable[..., list[Tensor]]
    homogeneous: bool = True
    buffer: bool = False
    generator: bool = False
    clears: bool = False
    saves_output: bool = False
    random: bool = True


def _scaled(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    t = x * w
    return [t * s, t, x + 0]


def _scaled_backward(s: Tensor, w: Tensor, t: Tensor, x: Tensor, g: Tensor) -> list[Tensor]:
    h = g * s
    return [t * g, x * h, w * h]


def _input_is_saved(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    return [x * w * s, x]


def _input_is_saved_backward(s: Tensor, w: Tensor, x: Tensor, g: Tensor) -> list[Tensor]:
    return [x * w * g, x * s * g, w * s * g]


def _dropout(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    mask = (torch.rand_like(x) > 0.3).to(x.dtype) * 2
    return [x * w * mask * s, x * mask, mask]


def _dropout_backward(s: Tensor, w: Tensor, t: Tensor, mask: Tensor, g: Tensor) -> list[Tensor]:
    return [t * w * g, t * s * g, mask.mul_(w * s * g)]  # a donated buffer


def _normal(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    r = torch.randn_like(x)
    return [x * w * r * s, x * r, r]


def _normal_backward(s: Tensor, w: Tensor, t: Tensor, r: Tensor, g: Tensor) -> list[Tensor]:
    return [t * w * g, t * s * g, r * w * s * g]


def _leaky(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    noise = torch.empty_like(x).uniform_(0.1, 0.9)
    r = torch.where(x * w >= 0, 1.0, noise)
    return [x * w * r * s, x, r]


def _leaky_backward(s: Tensor, w: Tensor, x: Tensor, r: Tensor, g: Tensor) -> list[Tensor]:
    return [x * w * r * g, x * r * s * g, w * r * s * g]


def _drawn_again(s: Tensor, w: Tensor, x: Tensor, generator: Generator) -> list[Tensor]:
    r = torch.rand(N, generator=generator, device=x.device)
    return [x * w * r * s, x + 0]


def _drawn_again_backward(
    s: Tensor, w: Tensor, x: Tensor, g: Tensor, generator: Generator
) -> list[Tensor]:
    r = torch.rand(N, generator=generator, device=x.device)
    return [x * w * r * g, x * r * s * g, w * r * s * g]


def _with_generator(generator: Generator, like: Tensor) -> Tensor:
    """``rand_like`` of the default generator, with the state of another one."""
    default = torch.cuda.default_generators[generator.device.index]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(generator)
    r = torch.rand_like(like)
    default.graphsafe_set_state(before)
    return r


def _swapped(s: Tensor, w: Tensor, x: Tensor, generator: Generator) -> list[Tensor]:
    return [x * w * _with_generator(generator, x) * s, x + 0]


def _swapped_backward(
    s: Tensor, w: Tensor, x: Tensor, g: Tensor, generator: Generator
) -> list[Tensor]:
    r = _with_generator(generator, x)
    return [x * w * r * g, x * r * s * g, w * r * s * g]


def _heads(x: Tensor) -> Tensor:
    return x.view(1, 3, N // 12, 4)


def _attention(s: Tensor, w: Tensor, x: Tensor) -> list[Tensor]:
    """Linear in the value; what was dropped is in the operator's own state."""
    v = x * w
    k = _heads(torch.full_like(x, 0.1))
    out, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(
        k, k, _heads(v), None, True, 0.3
    )
    return [out.reshape(N) * s, x + 0, out, lse, seed, offset]


def _attention_backward(
    s: Tensor,
    w: Tensor,
    x: Tensor,
    out: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    g: Tensor,
) -> list[Tensor]:
    k = _heads(torch.full_like(x, 0.1))
    _, _, gv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        _heads(g * s),
        k,
        k,
        _heads(x * w),
        None,
        out,
        lse,
        seed,
        offset,
        0.3,
        [False, False, True, False],
    )
    gv = gv.reshape(N)
    return [out.reshape(N) * g, gv * x, gv * w]


def _running(s: Tensor, w: Tensor, x: Tensor, buffer: Tensor) -> list[Tensor]:
    buffer.mul_(0.5).add_(x, alpha=0.25)
    t = (x + buffer) * w
    return [t * s, t, buffer + x]


def _running_backward(s: Tensor, w: Tensor, t: Tensor, y: Tensor, g: Tensor) -> list[Tensor]:
    h = g * s
    return [t * g, y * h, w * h * 1.25]


PAIRS = (
    Pair("scaled", _scaled, _scaled_backward, random=False),
    Pair("scaled and cleared", _scaled, _scaled_backward, random=False, clears=True),
    Pair("input saved", _input_is_saved, _input_is_saved_backward, random=False),
    Pair("dropout", _dropout, _dropout_backward, clears=True),
    Pair("normal", _normal, _normal_backward),
    Pair("leaky", _leaky, _leaky_backward),
    Pair("drawn again", _drawn_again, _drawn_again_backward, generator=True),
    Pair(
        "drawn again and cleared", _drawn_again, _drawn_again_backward, generator=True, clears=True
    ),
    Pair("swapped", _swapped, _swapped_backward, generator=True),
    Pair("attention", _attention, _attention_backward, saves_output=True),
    Pair("running", _running, _running_backward, homogeneous=False, buffer=True, random=False),
)


class Owner(Protocol):
    """What keeps the graphs of pairs: ``program_training.Training``."""

    def call_pair(
        self, pair: Pair, is_backward: bool, inputs: list[Any], generator: Generator | None
    ) -> list[Any]:
        """Run one half. ``inputs`` is emptied."""

    def generators_of(self, pair: Pair) -> tuple[Generator, Generator]:
        """Those of the forward and of the backward."""

    buffer_there: Tensor


class PairFunction(torch.autograd.Function):
    """A pair for autograd."""

    @staticmethod
    def forward(ctx: Any, owner: Owner, pair: Pair, s: Tensor, w: Tensor, x: Tensor) -> Tensor:
        ctx.owner, ctx.pair = owner, pair
        inputs: list[Any] = [s, w, x]
        del x
        if pair.buffer:
            inputs.append(owner.buffer_there)
        generator = None
        if pair.generator:
            generator = owner.generators_of(pair)[0]
            ctx.state = generator.get_state()
        out, *saved = owner.call_pair(pair, False, inputs, generator)
        if pair.clears:
            ctx.save_for_backward(s, w)
            ctx.kept = saved
        else:
            ctx.save_for_backward(s, w, *saved)
            ctx.kept = []
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        owner, pair = ctx.owner, ctx.pair
        inputs = [*ctx.saved_tensors, *ctx.kept, g]
        ctx.kept = []
        del g
        generator = None
        if pair.generator:
            generator = owner.generators_of(pair)[1]
            if not torch.equal(generator.get_state(), ctx.state):
                generator.set_state(ctx.state)
        return None, None, *owner.call_pair(pair, True, inputs, generator)

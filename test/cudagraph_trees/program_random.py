"""Functions of random programs that draw random numbers, see ``programs``.

What is random is the same with and without a graph, and so is what is drawn next. Each
function's last output is what it drew: no two calls draw the same.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .program_functions import N, Spec


def noise(x: Tensor) -> list[Tensor]:
    return [x * 0.5 + torch.rand_like(x), torch.rand_like(x)]


def normal(x: Tensor) -> list[Tensor]:
    y = torch.randn_like(x)
    return [x * 0.5 + y, y]


def dropped(x: Tensor) -> list[Tensor]:
    return [F.dropout(x * 0.5, 0.5), F.dropout(torch.ones_like(x), 0.25)]


def coins(x: Tensor) -> list[Tensor]:
    y = torch.bernoulli(torch.full_like(x, 0.3))
    return [x * 0.5 * y, y]


def leaky(x: Tensor) -> list[Tensor]:
    """The slopes below zero are random."""
    return [F.rrelu(x * 0.5 - 20, 0.25, 0.5, training=True), torch.rand_like(x)]


def in_place_noise(x: Tensor) -> list[Tensor]:
    y = x * 0.5
    y[: N // 2].uniform_()
    return [y, torch.empty_like(y).exponential_()]


def own_noise(x: Tensor, generator: Generator) -> list[Tensor]:
    """Of a generator that is handed in, and of the default one."""
    y = torch.rand(N, generator=generator, device=x.device)
    return [x * 0.5 + torch.rand_like(x), x * 0.5 + y, y]


def own_normal(x: Tensor, generator: Generator) -> list[Tensor]:
    y = torch.empty_like(x).normal_(generator=generator)
    return [torch.bernoulli(torch.full_like(x, 0.5), generator=generator) * x * 0.5, y]


def swapped(x: Tensor, generator: Generator) -> list[Tensor]:
    """As AOTAutograd recomputes: the default generator has another's state meanwhile."""
    default = torch.cuda.default_generators[generator.device.index]
    before = default.graphsafe_get_state()
    default.graphsafe_set_state(generator)
    y = torch.rand_like(x)
    default.graphsafe_set_state(before)
    return [x * 0.5 + y + torch.rand_like(x), y]


def attention(x: Tensor) -> list[Tensor]:
    """With dropout, whose state the operator returns."""
    q = (x * 0.01).view(1, 3, N // 12, 4)
    y = F.scaled_dot_product_attention(q, q, x.view_as(q), dropout_p=0.3)
    return [y.reshape(N), torch.rand_like(x)]


RANDOM_SPECS = (
    Spec(noise, 1, random=True),
    Spec(normal, 1, random=True),
    Spec(dropped, 1, random=True),
    Spec(coins, 1, random=True),
    Spec(leaky, 1, random=True),
    Spec(in_place_noise, 1, random=True),
    Spec(own_noise, 1, random=True, generator=0),
    Spec(own_normal, 1, random=True, generator=1),
    Spec(swapped, 1, random=True, generator=0),
    Spec(attention, 1, random=True),
)

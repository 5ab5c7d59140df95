"""What random programs call, see ``programs``: one function for each thing that trees care about.

Values stay bounded and exact: halves, and small numbers added. What is random is in
``program_random``, what autograd goes through in ``program_pairs``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

N = 300
SIZES = (7, 200, N, 50)
GRAPHED_SIZES = (7, 200, N)
"""``cudagraph_capture_sizes`` while programs run: the others run without a graph."""


class Interrupt(BaseException):
    """What Ctrl+C is."""


def split(x: Tensor) -> list[Tensor]:
    y = x * 0.5
    return [y + 1, y[: N // 2], y[N // 2 :]]


def chain(x: Tensor) -> list[Tensor]:
    for k in range(4):
        x = x * 0.5 + k
    return [x, x - 3]


def alias_of_input(x: Tensor) -> list[Tensor]:
    return [x[1:], x * 0.5 + 5, x.new_zeros(0)]


def add(x: Tensor, y: Tensor) -> list[Tensor]:
    return [x[: N // 4] * 0.5 + y[: N // 4]]


def late(x: Tensor, y: Tensor) -> list[Tensor]:
    """``y`` is read when memory for something else has been taken."""
    t = x * 0.5 + 1
    return [t + y * 0.5]


def odd_outputs(x: Tensor) -> list[Any]:
    y = x * 0.5
    return [None, y, 7, y[5:], x[: N // 2]]


def keep_nothing(x: Tensor, y: Tensor) -> list[Tensor]:
    z = (x - y) * 0.5
    return [z * 0.5, z.sum() * 0.0]


def write(x: Tensor, y: Tensor) -> list[Tensor]:
    x.mul_(0.5)
    return [x * 0.5 + y * 0.5]


def view_chain(x: Tensor) -> list[Tensor]:
    """Views of views, one of them expanded."""
    y = (x * 0.5).view(3, N // 3)
    return [y.t(), y[1].unsqueeze(0).expand(4, N // 3), y.t()[10:50].t()]


def in_place(x: Tensor) -> list[Tensor]:
    """Written to through views."""
    y = x * 0.5
    y[5:50].mul_(0.5)
    z = y.add_(1).view(-1, 3)
    z[:, 1].zero_()
    return [y, z]


def update_buffer(b: Tensor, x: Tensor) -> list[Tensor]:
    """``b`` is static, and written to: running statistics."""
    b.mul_(0.5).add_(x, alpha=0.25)
    return [b * 0.5 + x * 0.5]


def with_weight(w: Tensor, x: Tensor) -> list[Tensor]:
    return [w + x * 0.5, w[3:]]


def of_size(x: Tensor, k: int) -> list[Tensor]:
    return [x[:k] * 0.5 + k, torch.full((k,), float(k), device=x.device)]


def forward(w: Tensor, x: Tensor) -> list[Tensor]:
    return [x * 0.5 + w, x * 0.25]


def backward(saved: Tensor, g: Tensor) -> list[Tensor]:
    return [saved * 0.5 + g * 0.5, g * 0.5]


@dataclass(frozen=True)
class Spec:
    """A function that programs call.

    Attributes:
        fn: what it computes.
        inputs: how many tensors of N elements it takes.
        writes: inputs that it writes to.
        weight: its first input is the machine's weight, static.
        buffer: its first input is the machine's buffer, static, which it writes to.
        sizes: what its last input, a number, can be.
        backward: it runs as a backward.
        random: it draws random numbers: its last tensor is nothing else, of ``N`` elements.
        generator: which of the machine's own generators is its last input; None for none.
        clones: what it returned and is held beyond its step gets memory of its own.
    """

    fn: Callable[..., list[Any]]
    inputs: int
    writes: tuple[int, ...] = ()
    weight: bool = False
    buffer: bool = False
    sizes: tuple[int, ...] = ()
    backward: bool = False
    random: bool = False
    generator: int | None = None
    clones: bool = False


SPECS = (
    Spec(split, 1),
    Spec(chain, 1),
    Spec(alias_of_input, 1),
    Spec(add, 2),
    Spec(late, 2),
    Spec(odd_outputs, 1, clones=True),
    Spec(view_chain, 1),
    Spec(in_place, 1),
    Spec(update_buffer, 1, buffer=True),
    Spec(keep_nothing, 2),
    Spec(write, 2, writes=(0,)),
    Spec(with_weight, 1, weight=True),
    Spec(of_size, 1, sizes=SIZES),
)
FORWARD, BACKWARD = Spec(forward, 1, weight=True), Spec(backward, 2, backward=True)


def storage_of(mirror: Tensor) -> int:
    """Which storage it is; that of a tensor that lives is nobody else's."""
    return mirror.untyped_storage()._cdata


def call_and_drop(fn: Callable[..., list[Any]], own: list[Any]) -> list[Any]:
    """Call, and let go of the arguments."""
    out = fn(*own)
    own.clear()
    return out

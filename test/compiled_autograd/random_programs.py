"""Random programs with hooks, custom functions, writes in place and views, and their gradients by
finite differences.

Note [Differences of what hooks change]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A hook that multiplies the gradient of a value h by c makes backward() compute something that is not
the derivative of the loss. It is the derivative of another function, at the same point: the one
with h0 + c (h - h0) in the place of h, where h0 is what h is at that point. So the loss is
evaluated beside the point with that put in, and no second way to compute gradients is needed.
An autograd.Function whose backward is c times the derivative is the same thing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SHAPE = (3, 4)
LEAVES = 3


class Scaled(torch.autograd.Function):
    """``tanh(a) + b``, whose gradient for a is c times the right one; with ``log``, Python code
    that notes when it runs."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: float, note: Callable[[], None]) -> Tensor:
        ctx.save_for_backward(a)
        ctx.c, ctx.note = c, note
        return a.tanh() + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (a,) = ctx.saved_tensors
        ctx.note()
        return grad * ctx.c * (1 - a.tanh() ** 2), grad, None, None


@dataclass
class Run:
    """One evaluation of a program.

    Attributes:
        leaves: its parameters.
        at: values of scaled tensors at the point, in order; None where hooks are registered.
        seen: the values that scaled tensors had.
        log: names of Python code, in the order in which it ran.
        finished: values of all leaves' gradients, as callbacks saw them.
    """

    leaves: list[Tensor]
    at: list[Tensor] | None = None
    seen: list[Tensor] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    finished: list[list[Tensor | None]] = field(default_factory=list)

    def scaled(self, h: Tensor, c: float, register: Callable[[Tensor], None]) -> Tensor:
        """``h``, through which a gradient passes c times."""
        if self.at is None:
            self.seen.append(h.detach().clone())
            register(h)
            return h
        base = self.at[len(self.seen)]
        self.seen.append(base)
        return base + c * (h - base)

    def note(self, name: str) -> None:
        self.log.append(name)

    def callback(self) -> None:
        self.finished.append([None if p.grad is None else p.grad.clone() for p in self.leaves])


Step = Callable[[Run, list[Tensor]], Tensor]


def program(seed: int) -> Callable[[Run], Tensor]:
    """The loss, a function of the leaves."""
    rng = random.Random(seed)
    steps = [_step(rng, i) for i in range(rng.randint(4, 10))]
    take = [rng.sample(range(LEAVES + i + 1), 2) for i in range(len(steps))]
    hooks_around = rng.random() < 0.3

    def loss(run: Run) -> Tensor:
        values = [p * 1.0 for p in run.leaves]
        values.append(torch.full(SHAPE, 0.3, dtype=torch.float64))
        context: Any = contextlib.nullcontext()
        if hooks_around and run.at is None:
            context = torch.autograd.graph.saved_tensors_hooks(
                lambda t: t.clone(), lambda t: t * 1.0
            )
        with context:
            for step, (a, b) in zip(steps, take, strict=True):
                values.append(step(run, [values[a], values[b]]))
            return sum((v.sin().sum() * 0.5 for v in values[-3:]), torch.zeros(()))

    return loss


def _step(rng: random.Random, i: int) -> Step:
    kind = rng.choice(
        ["sin", "mul", "matmul", "views", "in_place", "in_place_view", "cat", "function", "shared"]
    )
    hook = rng.choice(["none", "none", "tensor", "two", "pre", "post", "callback", "in_hook"])
    c, name = rng.choice([0.5, 2.0, -1.5]), f"{i}"

    def apply(run: Run, given: list[Tensor]) -> Tensor:
        a, b = given
        if kind == "sin":
            h = (a + 0.1 * b).sin()
        elif kind == "mul":
            h = a * b.tanh()
        elif kind == "matmul":
            h = 0.4 * (a @ b.t()) @ a
        elif kind == "views":
            h = a.t().reshape(2, 6).reshape(-1)[:12].view(4, 3).permute(1, 0) * 1.5
        elif kind == "in_place":
            h = a * 1.0
            h.mul_(b.tanh()).add_(a, alpha=0.5)
        elif kind == "in_place_view":
            h = a.contiguous() * 1.0
            h[:, 1:3].mul_(b[:, :2])
            h.flatten()[::2].add_(0.25)
            h.t()[0].copy_(b[:, 3])
        elif kind == "cat":
            h = torch.cat([a[:, :2], b.narrow(1, 1, 2) * 2], 1).flip(0)
        elif kind == "shared":
            h = a.expand(2, *SHAPE).sum(0) * 0.3 + b.sum(0, keepdim=True).expand(SHAPE) * 0.2
        elif run.at is None:
            h = Scaled.apply(a, b, c, lambda: run.note(f"function {name}"))
            run.seen.append(a.detach().clone())
        else:
            base = run.at[len(run.seen)]
            run.seen.append(base)
            h = base.tanh() + c * (a.tanh() - base.tanh()) + b
        return run.scaled(h, c, lambda t: _register(run, t, hook, c, name)) if hook != "none" else h

    return apply


def _register(run: Run, h: Tensor, hook: str, c: float, name: str) -> None:
    """A hook that multiplies by c what flows through ``h``."""
    if not h.requires_grad:  # nothing of it depends on a leaf
        return

    def times(grad: Tensor, by: float = c) -> Tensor:
        run.note(f"{hook} {name}")
        return grad * by

    def queue(grad: Tensor) -> Tensor:
        torch.autograd.Variable._execution_engine.queue_callback(run.callback)
        return times(grad)

    def with_a_backward(grad: Tensor) -> Tensor:
        x = torch.full((2,), c, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            (x * x).sum().backward()
        assert x.grad is not None
        return times(grad, float(x.grad[0]) / 2)

    node: Any = h.grad_fn
    if hook == "tensor":
        h.register_hook(times)
    elif hook == "two":
        h.register_hook(lambda g: times(g, 2.0))
        h.register_hook(lambda g: None)
        h.register_hook(lambda g: times(g, c / 2))
    elif hook == "pre":
        node.register_prehook(lambda grads: tuple(None if g is None else times(g) for g in grads))
    elif hook == "post":
        node.register_hook(
            lambda inputs, outputs: tuple(None if g is None else times(g) for g in inputs)
        )
    elif hook == "callback":
        h.register_hook(queue)
    else:
        h.register_hook(with_a_backward)


def leaves(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(SHAPE, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(LEAVES)
    ]


def differences(loss: Callable[[Run], Tensor], run: Run, seed: int) -> Iterator[tuple[float, Any]]:
    """For a few directions: the derivative of the loss that hooks make of it, at the leaves of
    ``run``, and the direction."""
    generator = torch.Generator().manual_seed(seed + 1)
    for _ in range(3):
        direction = [
            torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in run.leaves
        ]

        def difference(step: float, direction: list[Tensor] = direction) -> float:
            values = []
            for side in (step, -step):
                beside = zip(run.leaves, direction, strict=True)
                with torch.no_grad():
                    values.append(loss(Run([p + side * d for p, d in beside], run.seen)))
            return float(values[0] - values[1]) / (2 * step)

        # Extrapolated: what is left of the error is of the fourth order in the step.
        yield (4 * difference(1e-4) - difference(2e-4)) / 3, direction

"""Gradients that do not arrive although the engine expects them: Note [Gradients that may be None]
in ``compiled_autograd/compiler.py``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memprof import compiled_autograd as ca

from .support import COMPILERS, captures, check, clear


class Stop(torch.autograd.Function):
    """Gives the second of its inputs no gradient, whatever that requires."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a * 2 + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 2, None


class Sum(torch.autograd.Function):
    """Takes for granted that it gets gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + 1, b * 2

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first.sum() + first, second * 2


@pytest.fixture
def leaves() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, requires_grad=True) for _ in range(2)]


def test_one_of_two_gradients_of_a_tensor(leaves: list[Tensor]) -> None:
    a, b = leaves
    check(lambda: (Stop.apply(a, b) * b).sum().backward(), leaves)


def test_the_only_gradient_of_a_leaf(leaves: list[Tensor]) -> None:
    a, b = leaves
    check(lambda: Stop.apply(a, b).sum().backward(), leaves)
    assert b.grad is None


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.LayerNorm(3)], ids=["linear", "norm"])
def test_the_first_gradients_of_a_layer(leaves: list[Tensor], layer: nn.Module) -> None:
    """GIVEN a layer whose parameters take their first gradients without a copy WHEN its output
    gets no gradient THEN it has none: in the graph that is captured so, and in one that was
    captured when there was a gradient."""
    a, b = leaves
    stopped = [True]

    class Gate(Stop):
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
            return grad * 2, None if stopped[0] else grad

    parameters = [a, b, *layer.parameters()]
    check(lambda: Gate.apply(a, layer(b[None])).sum().backward(), parameters)
    with captures() as found, ca.enable(COMPILERS["as_it_is"], False):
        for stopped[0] in (False, True, False):
            clear(parameters)
            Gate.apply(a, layer(b[None])).sum().backward()
            assert [p.grad is None for p in parameters[1:]] == [stopped[0]] * 3
    assert len(found) == 1


@pytest.mark.parametrize("function", ["custom", "built in"])
def test_a_view_that_was_written_in_place(leaves: list[Tensor], function: str) -> None:
    """GIVEN a tensor of which a view was written WHEN it gets no gradient THEN neither what it
    was before nor what was written gets one."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2).add_(y)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            return grad * 2, grad.clone()

    a, b = leaves
    written = torch.randn(2, requires_grad=True)

    def step() -> None:
        base = b.clone()
        if function == "custom":
            Times.apply(base[:2], written)
        else:
            base[:2] = written
        Stop.apply(a, base).sum().backward()

    check(step, [*leaves, written])


def test_all_gradients_of_a_tensor(leaves: list[Tensor]) -> None:
    a, b = leaves

    def step() -> None:
        c = b.sin()
        (Stop.apply(a, c) + Stop.apply(a, c)).sum().backward()

    check(step, leaves)
    assert b.grad is None


def test_custom_function_gets_zeros(leaves: list[Tensor]) -> None:
    a, b = leaves

    def step() -> None:
        first, second = Sum.apply(a, b)
        first.register_hook(lambda g: None)
        (Stop.apply(a, first.cos()) + second).sum().backward()

    check(step, leaves)


def test_compiled_function_gets_zeros(leaves: list[Tensor]) -> None:
    a, b = leaves

    def step() -> None:
        compiled = torch.compile(lambda x: (x.sin(), x.cos()), backend="aot_eager")
        first, second = compiled(b)
        (Stop.apply(a, first) + second).sum().backward()

    check(step, leaves)


def test_zeros_have_the_sizes_of_the_run(leaves: list[Tensor]) -> None:
    w = leaves[0]
    with ca.enable(COMPILERS["as_it_is"]):
        for n in (2, 5, 3):
            x = w.expand(n, 3)
            first, second = Sum.apply(x, x)
            w.grad = None
            (Stop.apply(x, first).sum() + second.sum()).backward()
            assert torch.equal(w.grad, torch.full((3,), 4.0 * n))


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_retained_gradients(leaves: list[Tensor]) -> None:
    """GIVEN retain_grad() on what gets a gradient, on what gets none, and on what Python knows
    no better than C++ THEN each is as in the normal engine; C++ itself would crash on None."""
    a, b = leaves

    def step() -> list[Tensor | None]:
        c = b.sin()
        first, second = Sum.apply(a, c)
        kept = [c, first, second]
        for tensor in kept:
            tensor.retain_grad()
        Stop.apply(first, c.cos()).sum().backward()
        return [tensor.grad for tensor in kept]

    check(step, leaves)


def test_hook_where_no_gradient_arrives(leaves: list[Tensor]) -> None:
    a, b = leaves
    seen: list[Tensor | None] = []

    def step() -> None:
        first, second = Sum.apply(a, b)
        second.register_hook(seen.append)
        first.sum().backward()

    check(step, leaves, compilers=("as_it_is",))
    assert seen == [None] * 3
    first, second = Sum.apply(a, b)
    second.register_hook(lambda g: torch.ones(3))
    with (
        ca.enable(COMPILERS["as_it_is"]),
        pytest.raises(RuntimeError, match="where none arrived"),
    ):
        first.sum().backward()

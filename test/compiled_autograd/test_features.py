"""Gradients of captured backwards are the normal engine's: ways to ask, functions, views."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memprof import compiled_autograd as ca

from .support import COMPILERS, captures, check, clear, gradients, parameters_of, same

# --- ways to ask for gradients ------------------------------------------------------------


def test_autograd_grad(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    check(lambda: torch.autograd.grad(model(x).square().sum(), parameters), parameters)


def test_autograd_grad_with_unused_and_given_gradients(model: nn.Module, x: Tensor) -> None:
    parameters = [*parameters_of(model), torch.randn(2, requires_grad=True)]
    grads = torch.randn(5, 3)

    def step() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(model(x), parameters, grads, allow_unused=True)

    check(step, parameters)


def test_backward_with_inputs(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    check(lambda: model(x).sum().backward(inputs=parameters[:2]), parameters)


def test_several_roots(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        y = model(x)
        torch.autograd.backward([y.sum(), y.square().mean()])

    check(step, parameters_of(model))


def test_two_roots_that_share_their_gradient() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    grad = torch.randn(3)
    check(lambda: torch.autograd.backward([a * 2, b * 3], [grad, grad]), [a, b])


def test_gradient_that_reaches_two_leaves() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def step() -> None:
        (a + b).sum().backward()
        assert a.grad is not b.grad

    check(step, [a, b])
    # Memory is not shared either: writing one leaves the other.
    with ca.enable(COMPILERS["as_it_is"]):
        clear([a, b])
        (a + b).backward(torch.ones(3))
    assert a.grad is not None
    a.grad.mul_(5)
    assert b.grad is not None
    assert torch.equal(b.grad, torch.ones(3))


def test_broadcast_and_mixed_dtypes() -> None:
    a = torch.randn(4, 1, requires_grad=True)
    b = torch.randn(3, requires_grad=True, dtype=torch.float64)
    check(lambda: (a * b).sin().sum().backward(), [a, b])


def test_accumulation_over_micro_batches(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        for part in (x, x + 1, x + 2):
            model(part).square().sum().backward()

    check(step, parameters_of(model), expect=2)  # the first has no gradient to add to


def test_retain_graph(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(step, parameters_of(model), expect=2)


def test_double_backward(model: nn.Module, x: Tensor) -> None:
    """GIVEN a gradient penalty WHEN captured THEN create_graph runs in the normal engine and
    the second backward is captured."""
    x = x.requires_grad_()

    def step() -> None:
        y = model(x).sigmoid().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (y + g.square().sum()).backward()

    check(step, [*parameters_of(model), x])


def test_dynamic_batch_sizes(model: nn.Module) -> None:
    """GIVEN dynamic=True WHEN batch sizes change THEN the first capture serves all others."""
    parameters = parameters_of(model)
    batches = [torch.randn(n, 4) for n in (5, 7, 3, 9, 12)]
    wanted = []
    for batch in batches:
        clear(parameters)
        model(batch).square().mean().backward()
        wanted.append(gradients(parameters))
    for compiler in COMPILERS.values():
        ca.reset()
        with captures() as found, ca.enable(compiler, dynamic=True):
            for batch, expected in zip(batches, wanted, strict=True):
                clear(parameters)
                model(batch).square().mean().backward()
                assert same(gradients(parameters), expected)
        assert len(found) == 1


def test_sizes_are_constants_until_they_change(model: nn.Module) -> None:
    """GIVEN dynamic=False WHEN a size changes THEN one more capture has it as an input."""
    parameters = parameters_of(model)
    with captures() as found, ca.enable(COMPILERS["as_it_is"], dynamic=False):
        for n in (5, 7, 5, 9, 3):
            batch = torch.randn(n, 4)
            with ca.disable():
                wanted = torch.autograd.grad(model(batch).square().mean(), parameters)
            clear(parameters)
            model(batch).square().mean().backward()
            assert same(gradients(parameters), wanted)
    assert len(found) == 2
    assert len(found[0].used_sizes) == 0
    assert len(found[1].used_sizes) > 0


# --- functions and views ------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.factor = 3.0
        return x * w * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad * w * ctx.factor, grad * x * ctx.factor


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, None]:
        return (a if b is None else b if a is None else a + b), None


def test_custom_function() -> None:
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    check(lambda: Scaled.apply(x, w).sin().sum().backward(), [x, w])


def test_custom_function_with_missing_gradients() -> None:
    x = torch.randn(4, requires_grad=True)
    check(lambda: TwoOutputs.apply(x, True)[1].sum().backward(), [x])


def test_copy_slices() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, requires_grad=True)

    def step() -> None:
        base = x.clone()
        base[:, 1] = y * 2
        base[0].mul_(3)
        base.t()[2].add_(y.sum())
        base.square().sum().backward()

    check(step, [x, y])


def test_copy_slices_of_a_custom_function() -> None:
    class Double_(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    x = torch.randn(4, 3, requires_grad=True)

    def step() -> None:
        base = x.clone()
        Double_.apply(base[1])
        base.sin().sum().backward()

    check(step, [x])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(model: nn.Module, x: Tensor, reentrant: bool) -> None:
    x = x.requires_grad_()

    def step() -> None:
        h = checkpoint(model, x, use_reentrant=reentrant)
        h.square().sum().backward()

    check(step, [*parameters_of(model), x])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_compiled_forward(model: nn.Module, x: Tensor, reentrant: bool) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    x = x.requires_grad_()
    check(
        lambda: checkpoint(compiled, x, use_reentrant=reentrant).square().sum().backward(),
        [*parameters_of(model), x],
    )


def test_sparse_gradients() -> None:
    """GIVEN sparse gradients to add to, of changing numbers of elements, which Dynamo cannot trace
    WHEN compiled with it THEN the captured graph runs as it is."""
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)
    parameters = [embedding.weight, *linear.parameters()]
    batches = [torch.randint(0, 10, (n,)) for n in (6, 3, 5, 4)]

    def summed() -> list[Tensor]:
        clear(parameters)
        for batch in batches:
            linear(embedding(batch)).square().sum().backward()
        return [p.grad.to_dense().clone() for p in parameters]

    wanted = summed()
    for compiler in COMPILERS.values():
        torch._dynamo.reset()
        ca.reset()
        with ca.enable(compiler, dynamic=False):
            for got, want in zip(summed(), wanted, strict=True):
                torch.testing.assert_close(got, want)

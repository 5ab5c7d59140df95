"""First gradients are taken, not copied, exactly where nobody else holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca
from memprof.compiled_autograd.nodes import is_accumulate_grad, takes_gradient

from .support import COMPILERS, check, clear

Step = Callable[[], Any]


def taken(step: Step, *parameters: Tensor) -> tuple[int, int]:
    """How many of the gradients are taken, and of how many."""
    clear(parameters)
    (found,) = ca.capture(step)
    clear(parameters)
    nodes = [n for n in found.graph.graph.nodes if is_accumulate_grad(n)]
    return sum(map(takes_gradient, nodes)), len(nodes)


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager")


def test_every_gradient_of_a_compiled_model() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )
    run, x, parameters = compiled(model), torch.randn(2, 3, 8, 8), list(model.parameters())
    assert taken(lambda: run(x).sum().backward(), *parameters) == (6, 6)
    check(lambda: run(x).sum().backward(), parameters)


def test_weights_of_a_plain_model_and_no_bias_that_is_the_gradient_itself() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 4)
    parameters = list(model.parameters())
    assert taken(lambda: model(x).sum().backward(), *parameters) == (2, 4)
    check(lambda: model(x).sum().backward(), parameters)


def test_a_gradient_until_now_is_added_to() -> None:
    w = torch.randn(3, 3, requires_grad=True)
    w.grad = torch.ones(3, 3)
    (found,) = ca.capture(lambda: (torch.ones(3, 3) @ w).sum().backward())
    assert not any(map(takes_gradient, found.graph.graph.nodes))


@pytest.mark.parametrize("compile_forward", [False, True])
def test_one_gradient_of_two_parameters(compile_forward: bool) -> None:
    """GIVEN two biases that get the same gradient THEN each has memory of its own."""
    a, b = (torch.randn(4, requires_grad=True) for _ in range(2))
    x = torch.randn(3, 4)

    def function(x: Tensor) -> Tensor:
        return (x + (a + b)).sin()

    run = compiled(function) if compile_forward else function
    assert taken(lambda: run(x).sum().backward(), a, b) == (0, 2)
    for compiler in ("as_it_is", "aot_eager"):
        clear([a, b])
        with ca.enable(COMPILERS[compiler], dynamic=False):
            run(x).sum().backward()
        assert a.grad is not None
        assert b.grad is not None
        assert a.grad.untyped_storage().data_ptr() != b.grad.untyped_storage().data_ptr()
    check(lambda: run(x).sum().backward(), [a, b])


def test_a_gradient_that_the_user_gave() -> None:
    """GIVEN a leaf whose gradient is the one that backward() is given THEN it is copied."""
    w, given = torch.randn(2, 3, requires_grad=True), torch.randn(6)
    for compiler in ("as_it_is", "aot_eager"):
        clear([w])
        with ca.enable(COMPILERS[compiler], dynamic=False):
            w.view(6).backward(given)
        assert w.grad is not None
        assert w.grad.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


def test_a_hook_that_keeps_the_gradient() -> None:
    w = torch.randn(3, 3, requires_grad=True)
    kept: list[Tensor] = []
    w.register_hook(lambda grad: kept.append(grad))
    x = torch.randn(3, 3)
    for compiler in ("as_it_is", "aot_eager"):
        clear([w])
        with ca.enable(COMPILERS[compiler], dynamic=False):
            (x @ w).sum().backward()
        assert w.grad is not None
        w.grad.zero_()
        assert kept[-1].abs().sum() > 0, compiler


def test_a_hook_on_what_the_gradient_is_a_view_of() -> None:
    w, x = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    kept: list[Tensor] = []

    def step() -> None:
        t = w.t()
        t.register_hook(lambda grad: kept.append(grad))
        (x @ t).sum().backward()

    assert taken(step, w) == (0, 1)


@pytest.mark.parametrize("compile_forward", [False, True])
def test_formats(compile_forward: bool) -> None:
    """Strides of gradients are those that the normal engine makes."""
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Conv2d(4, 4, 1, bias=False))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = model.to(memory_format=memory_format)  # type: ignore[call-overload]
        run = compiled(model) if compile_forward else model
        parameters = list(model.parameters())
        clear(parameters)
        run(x).sum().backward()
        wanted = [p.grad.clone() for p in parameters if p.grad is not None]
        for compiler in ("as_it_is", "aot_eager"):
            clear(parameters)
            with ca.enable(COMPILERS[compiler], dynamic=False):
                run(x).sum().backward()
            for p, grad in zip(parameters, wanted, strict=True):
                assert p.grad is not None
                assert torch.equal(p.grad, grad)
                dense = [n for n, size in enumerate(p.shape) if size > 1]
                assert [p.grad.stride(n) for n in dense] == [p.stride(n) for n in dense]

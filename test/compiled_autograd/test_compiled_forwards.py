"""Gradients of captured backwards are the normal engine's where the forward is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import COMPILERS, captures, check, clear, gradients, parameters_of, same


def test_compiled_forward_twice_in_one_backward(model: nn.Module, x: Tensor) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    check(lambda: (compiled(x) * compiled(x + 1)).sum().backward(), parameters_of(model))


def test_graph_breaks(model: nn.Module, x: Tensor) -> None:
    def broken(x: Tensor) -> Tensor:
        h = model[0](x)
        torch._dynamo.graph_break()
        h = model[1](h).sin()
        torch._dynamo.graph_break()
        return model[2](h)

    compiled = torch.compile(broken, backend="aot_eager")
    check(lambda: compiled(x).square().sum().backward(), parameters_of(model))


def test_missing_gradients_of_dynamic_size(model: nn.Module) -> None:
    """GIVEN an output of a compiled forward that the loss does not use WHEN its size changes
    THEN the zeros that stand for its gradient follow."""
    parameters = parameters_of(model)

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        h = model(x)
        return h.sin(), h.cos() * 2

    compiled = torch.compile(two, backend="aot_eager", dynamic=True)
    for compiler in COMPILERS.values():
        ca.reset()
        torch._dynamo.reset()
        with captures() as found, ca.enable(compiler, dynamic=True):
            for n in (5, 7, 9):
                batch = torch.randn(n, 4)
                with ca.disable():
                    clear(parameters)
                    two(batch)[0].square().mean().backward()
                    wanted = gradients(parameters)
                clear(parameters)
                compiled(batch)[0].square().mean().backward()
                for got, want in zip(gradients(parameters), wanted, strict=True):
                    torch.testing.assert_close(got, want)
        assert len(found) == 1


def test_operators_at_capture(x: Tensor) -> None:
    """GIVEN a C++ node that runs operators while it is captured, on inputs or on a gradient, THEN
    it is refused; and runs in the normal engine where it may."""
    tracer_class = ca.AutogradCompilerInstance
    original = tracer_class.apply_functional
    w = torch.randn(4, requires_grad=True)

    def on_inputs(self: Any, name: str, grads: Any, args: Any, metadata: Any) -> Any:
        if name == "MulBackward0":
            saved = [a for a in args if isinstance(a, Tensor)]
            args = [a * 1 if a is saved[0] else a for a in args]
        return original(self, name, grads, args, metadata)

    def on_gradients(self: Any, name: str, grads: Any, args: Any, metadata: Any) -> Any:
        return original(self, name, [g * 1 for g in grads], args, metadata)

    told: list[ca.CaptureError] = []
    for broken in (on_inputs, on_gradients):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracer_class, "apply_functional", broken)
            with (
                ca.enable(COMPILERS["as_it_is"], dynamic=True),
                pytest.raises(ca.CaptureError, match="at capture, on sizes of that time"),
            ):
                (w * x).sum().backward()
            assert w.grad is None
            ca.turn_on(COMPILERS["as_it_is"], dynamic=True, on_unsupported=told.append)
            (w * x).sum().backward()
            ca.reset()
            assert torch.equal(w.grad, x.sum(0))
            w.grad = None
    assert len(told) == 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensor_subclass_through_aot(dynamic: bool) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    w = nn.Parameter(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)))
    x = torch.randn(2, 3)

    @torch.compile(backend="aot_eager", dynamic=dynamic)
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin()

    f(x, w).sum().backward()
    assert isinstance(w.grad, TwoTensor)
    wanted = w.grad.a.clone(), w.grad.b.clone()
    layout = w.grad.size(), w.grad.stride()
    for name, compiler in COMPILERS.items():
        ca.reset()
        w.grad = None
        with captures() as found, ca.enable(compiler, dynamic=False):
            f(x, w).sum().backward()
        assert isinstance(w.grad, TwoTensor), name
        assert same((w.grad.a, w.grad.b), wanted)
        assert (w.grad.size(), w.grad.stride()) == layout
        assert len(found) == 1


def test_hooks_inside_a_compiled_forward(model: nn.Module, x: Tensor) -> None:
    """Dynamo hands the hook to the backward as backward state, which needs compiled autograd."""

    def f(x: Tensor) -> Tensor:
        h = model[0](x)
        h.register_hook(lambda g: g * 2)
        return model[2](h)

    parameters = parameters_of(model)
    f(x).sum().backward()
    wanted = gradients(parameters)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    clear(parameters)
    with ca.enable(COMPILERS["aot_eager"], dynamic=False):
        compiled(x).sum().backward()
    assert same(gradients(parameters), wanted)

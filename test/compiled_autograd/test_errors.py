"""What fails says so, and leaves a clean state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import COMPILERS, clear, gradients, parameters_of, same

WAYS_OF_ASKING: dict[str, Callable[[Tensor, Tensor], object]] = {
    "backward": lambda loss, x: loss.backward(),
    "backward of inputs": lambda loss, x: loss.backward(inputs=[x]),
    "grad": torch.autograd.grad,
}


@pytest.mark.parametrize("how", WAYS_OF_ASKING)
def test_compiled_forward_cannot_be_differentiated_twice(
    how: str, model: nn.Module, x: Tensor
) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    x = x.requires_grad_()
    with ca.enable(COMPILERS["as_it_is"]):
        (g,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        loss = g.square().sum()
        # It is the normal engine that says so.
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            WAYS_OF_ASKING[how](loss, x)
        # and what can be captured still is
        compiled(x).sum().backward()
    # and the switch is where it was
    assert not torch._dynamo.compiled_autograd.compiled_autograd_enabled


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_is_the_normal_engines(model: nn.Module, x: Tensor) -> None:
    with torch.autograd.detect_anomaly():
        with pytest.raises(ca.CaptureError, match="in anomaly mode"):
            ca.capture(lambda: model(x).sum().backward())
        with (
            ca.enable(COMPILERS["as_it_is"]),
            pytest.raises(RuntimeError, match="MulBackward0' returned nan values"),
        ):
            (model(x) * float("nan")).sum().backward()


def test_what_is_refused_on_the_way_runs_in_the_normal_engine() -> None:
    class Boxed(torch.autograd.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return (gradient[0] if isinstance(gradient, list) else gradient) * x.cos()

    x = torch.randn(5, requires_grad=True)
    told: list[ca.CaptureError] = []
    ca.turn_on(COMPILERS["as_it_is"], on_unsupported=told.append)
    # WHEN a node in the midst of a capture is refused
    Boxed.apply(x * x).sum().backward()
    # THEN what the forward has saved is there for the normal engine
    assert same(gradients([x]), [2 * x * (x * x).cos()])
    assert ["in a box" in str(error) for error in told] == [torch.__version__ >= "2.13"]


def test_error_in_a_hook_reaches_the_user_and_leaves_a_clean_state(
    model: nn.Module, x: Tensor
) -> None:
    parameters = parameters_of(model)

    def hook(grad: Tensor) -> None:
        raise ZeroDivisionError("in a hook")

    handle = parameters[0].register_hook(hook)
    with ca.enable(COMPILERS["as_it_is"]):
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            model(x).sum().backward()
        handle.remove()
        clear(parameters)
        model(x).sum().backward()
    wanted = gradients(parameters)
    clear(parameters)
    model(x).sum().backward()
    assert same(gradients(parameters), wanted)


def test_error_of_the_compiler_reaches_the_user(model: nn.Module, x: Tensor) -> None:
    def compiler(graph: Any) -> Any:
        raise ZeroDivisionError("in the compiler")

    with ca.enable(compiler), pytest.raises(ZeroDivisionError, match="in the compiler"):
        model(x).sum().backward()
    model(x).sum().backward()  # the normal engine works


def test_batched_gradients_are_refused_at_capture(model: nn.Module, x: Tensor) -> None:
    x = x.requires_grad_()
    y = model(x).sum(0)
    with ca.enable(COMPILERS["as_it_is"]), pytest.raises(ca.CaptureError, match="grads_batched"):
        torch.autograd.grad(y, [x], torch.eye(3), is_grads_batched=True)


def test_nested_tensors_run_in_the_normal_engine(model: nn.Module) -> None:
    """GIVEN what the engine itself refuses to describe WHEN a backward may fall back THEN it
    does and says why."""
    parameters = parameters_of(model)
    batch = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    model(batch).values().square().sum().backward()
    wanted = gradients(parameters)
    clear(parameters)
    told: list[ca.CaptureError] = []
    ca.turn_on(COMPILERS["as_it_is"], on_unsupported=told.append)
    try:
        model(batch).values().square().sum().backward()
    finally:
        ca.reset()
    assert same(gradients(parameters), wanted)
    assert ["NestedTensor" in str(error) for error in told] == [True]


@pytest.mark.parametrize(
    ("hook", "error", "words"),
    [
        (lambda g: g[:1].clone(), RuntimeError, "changed the size"),
        (lambda g: g.double(), RuntimeError, "changed the type"),
        (lambda g: 3, TypeError, ""),
    ],
)
@pytest.mark.parametrize("compiler", list(COMPILERS))
def test_hook_that_returns_another_kind_of_gradient(
    hook: Any, error: type[Exception], words: str, compiler: str
) -> None:
    """The normal engine raises too; a captured graph would go on with what it got."""
    w = torch.randn(3, requires_grad=True)
    handle = w.register_hook(hook)
    with pytest.raises(error, match=words):
        (w * 2).sum().backward()
    with ca.enable(COMPILERS[compiler], dynamic=False):
        with pytest.raises(error, match=words):
            (w * 2).sum().backward()
        assert w.grad is None
        handle.remove()
        (w * 2).sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0))


def test_fault_at_capture_costs_the_capture_and_not_the_backward(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a pass of ours that is broken WHEN a backward may fall back THEN the normal engine
    runs it, once; a hook's error is no fault of ours, and is raised, once."""
    parameters = parameters_of(model)
    model(x).sum().backward()
    wanted = gradients(parameters)
    clear(parameters)
    told: list[ca.CaptureError] = []
    calls: list[str] = []

    def broken(graph: Any) -> None:
        raise KeyError("a pass")

    def failing(grad: Tensor) -> None:
        calls.append("hook")
        raise ZeroDivisionError("in a hook")

    ca.turn_on(COMPILERS["as_it_is"], on_unsupported=told.append)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("memprof.compiled_autograd.passes.accumulate_grad_asap", broken)
            model(x).sum().backward()
        assert same(gradients(parameters), wanted)
        assert ["KeyError: 'a pass'" in str(error) for error in told] == [True]
        handle = parameters[0].register_hook(failing)
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            model(x).sum().backward()
        handle.remove()
    finally:
        ca.reset()
    assert calls == ["hook"]
    assert len(told) == 1

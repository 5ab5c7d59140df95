"""Gradients of captured backwards are the normal engine's with hooks of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import COMPILERS, check, clear, parameters_of, same


def test_tensor_hooks(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    handles = [parameters[0].register_hook(lambda g: g * 2)]
    handles.append(parameters[0].register_hook(lambda g: g + 1))
    handles.append(parameters[3].register_hook(lambda g: None))

    def step() -> None:
        h = model[1](model[0](x))
        h.register_hook(lambda g: g.clamp(min=0))
        model[2](h).square().sum().backward()

    check(step, parameters)
    for handle in handles:
        handle.remove()


def test_node_hooks(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        h = model[0](x)
        y = model[2](model[1](h))
        h.grad_fn.register_prehook(lambda grads: tuple(g * 3 for g in grads))
        h.grad_fn.register_hook(lambda ins, outs: tuple(None if g is None else g + 1 for g in ins))
        y.square().sum().backward()

    check(step, parameters_of(model))


def test_module_backward_hooks(model: nn.Module, x: Tensor) -> None:
    handles = [
        model[0].register_full_backward_hook(lambda m, gi, go: None),
        model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    ]
    check(lambda: model(x).sum().backward(), parameters_of(model))
    for handle in handles:
        handle.remove()


def test_hooks_of_accumulation_run_in_order(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    for compiled in (False, True):
        seen: list[str] = []
        handles: list[Any] = [
            parameters[0].register_hook(lambda g, s=seen: s.append("tensor")),
            parameters[0].register_post_accumulate_grad_hook(lambda p, s=seen: s.append("after")),
        ]
        accumulator = torch.autograd.graph.get_gradient_edge(parameters[0]).node
        handles.append(accumulator.register_prehook(lambda g, s=seen: s.append("pre")))
        handles.append(accumulator.register_hook(lambda i, o, s=seen: s.append("post")))
        clear(parameters)
        if compiled:
            with ca.enable(COMPILERS["as_it_is"]):
                model(x).sum().backward()
        else:
            model(x).sum().backward()
        for handle in handles:
            handle.remove()
        assert seen == ["tensor", "pre", "after", "post"], compiled


@pytest.mark.parametrize("compile_forward", [False, True])
def test_optimizer_in_a_post_accumulate_hook(
    model: nn.Module, x: Tensor, compile_forward: bool
) -> None:
    """GIVEN an optimizer that writes each parameter as soon as its gradient is there WHEN the
    graph of a compiled forward is inlined THEN nodes that read a parameter read its old value."""
    parameters = parameters_of(model)
    run: Any = torch.compile(model, backend="aot_eager") if compile_forward else model
    start = [p.detach().clone() for p in parameters]

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.5)
        parameter.grad = None

    def trained(compiler: Any) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip(parameters, start, strict=True):
                parameter.copy_(value)
        clear(parameters)
        for _ in range(3):
            if compiler is None:
                run(x).square().sum().backward()
            else:
                with ca.enable(compiler, dynamic=False):
                    run(x).square().sum().backward()
        return [p.detach().clone() for p in parameters]

    handles = [p.register_post_accumulate_grad_hook(update) for p in parameters]
    wanted = trained(None)
    assert not same(wanted, start)
    assert same(trained(COMPILERS["as_it_is"]), wanted)
    if compile_forward:
        assert same(trained(COMPILERS["aot_eager"]), wanted)
    else:
        # The forward saved a view of the parameter; AOTAutograd refuses a graph that writes
        # a leaf and reads a view of it. It says so before anything has run.
        with pytest.raises(Exception, match="leaf"):
            trained(COMPILERS["aot_eager"])
    for handle in handles:
        handle.remove()


def test_saved_tensor_hooks(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1.0):
            y = model(x)
        y.square().sum().backward()

    check(step, parameters_of(model))


def test_what_grad_returns_of_a_tensor_with_hooks() -> None:
    """GIVEN hooks of a tensor whose gradient is asked for THEN it is what the normal engine
    returns: before the hooks if the tensor's node runs as well, after them if not."""
    w = torch.randn(3, requires_grad=True)

    def step() -> list[Tensor]:
        found: list[Tensor] = []
        for with_leaf in (False, True):
            y = w * 2
            z = y.sin()
            for hook in (lambda g: g * 2, lambda g: None, lambda g: g + 1):
                y.register_hook(hook)
            z.register_hook(lambda g: g * 5)
            found += torch.autograd.grad(z.sum(), [z, y, w] if with_leaf else [y])
        handle = w.register_hook(lambda g: g * 7)
        found += torch.autograd.grad((w * 2).sum(), [w])
        handle.remove()
        return found

    check(step, [w], expect=3)


def test_saved_tensors_are_read_before_they_are_written() -> None:
    """GIVEN a forward that reads another parameter's gradient, or that parameter detached, WHEN
    the backward adds to the one and an optimizer in a hook writes the other THEN gradients are
    those of the old values; the normal engine cannot always order these, and raises then."""
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    start, gradient = a.detach().clone(), torch.randn(3)

    def step(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter -= parameter.grad

    handle = a.register_post_accumulate_grad_hook(step)
    for read in ("gradient", "parameter"):
        with torch.no_grad():
            a.copy_(start)
        a.grad, b.grad = gradient.clone(), None
        y = b * (a.grad if read == "gradient" else a.detach())
        z = y * y + a
        with ca.enable(COMPILERS["as_it_is"]):
            z.sum().backward()
        old = gradient if read == "gradient" else start
        torch.testing.assert_close(b.grad, 2 * b.detach() * old * old)
        torch.testing.assert_close(a.detach(), start - gradient - 1)
    handle.remove()

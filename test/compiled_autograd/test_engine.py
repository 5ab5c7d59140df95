"""Switching, nesting, installing in torch's place, explaining captures."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd as torchs
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import captures, clear, gradients, same


def as_it_is(graph: Any) -> Any:
    return graph


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(4, 2)


X = torch.randn(3, 4)


def test_enable_and_disable_nest(model: nn.Linear) -> None:
    state = torchs
    with captures() as found:
        with ca.enable(as_it_is):
            assert state.compiled_autograd_enabled
            assert state.depth == 1
            with ca.disable():
                assert not state.compiled_autograd_enabled
                model(X).sum().backward()
                with ca.enable(as_it_is):
                    assert state.compiled_autograd_enabled
            assert state.compiled_autograd_enabled
            assert not found
            model(X).sum().backward()
            assert len(found) == 1
        assert not state.compiled_autograd_enabled
        assert state.depth == 0
        clear(list(model.parameters()))
        model(X).sum().backward()
    assert len(found) == 1


def test_another_compiler_does_not_get_the_graphs_of_the_first(model: nn.Linear) -> None:
    ran: list[str] = []

    def compiler(name: str, graph: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(name)
            return graph(*args)

        return run

    a, b = functools.partial(compiler, "a"), functools.partial(compiler, "b")
    for function in (a, a, b):
        clear(list(model.parameters()))
        with ca.enable(function):
            model(X).sum().backward()
    with ca.enable(a):
        with ca.enable(b):
            clear(list(model.parameters()))
            model(X).sum().backward()
        clear(list(model.parameters()))
        model(X).sum().backward()
    assert ran == ["a", "a", "b", "b", "a"]


def test_the_same_compiler_keeps_its_graphs(model: nn.Linear) -> None:
    with captures() as found:
        for _ in range(3):
            clear(list(model.parameters()))
            with ca.enable(as_it_is):
                model(X).sum().backward()
    assert len(found) == 1


def test_stance_force_eager_wins(model: nn.Linear) -> None:
    with captures() as found, torch.compiler.set_stance("force_eager"), ca.enable(as_it_is):
        model(X).sum().backward()
    assert not found


@pytest.mark.parametrize(("given", "dynamic"), [(None, True), (3, True), (as_it_is, 1)])
def test_wrong_arguments(given: Any, dynamic: Any) -> None:
    with pytest.raises(TypeError, match="must be"), ca.enable(given, dynamic=dynamic):
        pass


def test_reset_from_inside_is_refused(model: nn.Linear) -> None:
    parameter = model.weight
    errors: list[Exception] = []

    def hook(grad: Tensor) -> None:
        try:
            ca.reset()
        except RuntimeError as error:
            errors.append(error)

    handle = parameter.register_hook(hook)
    with ca.enable(as_it_is):
        model(X).sum().backward()
    handle.remove()
    assert len(errors) == 1


def test_torchs_own_switch_uses_ours_when_installed(model: nn.Linear) -> None:
    """GIVEN install() WHEN torch._dynamo.config.compiled_autograd = True THEN memprof captures,
    with the compiler that torch.compile was given."""
    parameters = list(model.parameters())
    model(X).square().sum().backward()
    wanted = gradients(parameters)
    ca.install()
    assert ca.installed()
    assert torchs.AutogradCompilerInstance is ca.AutogradCompilerInstance
    with captures() as found, torch._dynamo.config.patch(compiled_autograd=True):

        @torch.compile(backend="aot_eager")
        def step(x: Tensor) -> None:
            model(x).square().sum().backward()

        for _ in range(2):
            clear(parameters)
            step(X)
            assert same(gradients(parameters), wanted)
    assert len(found) == 1
    ca.uninstall()
    assert torchs.AutogradCompilerInstance is not ca.AutogradCompilerInstance
    with captures() as found, torchs._enable(as_it_is):
        clear(parameters)
        model(X).square().sum().backward()
    assert not found


def test_installed_a_differentiable_backward_runs_normally() -> None:
    """GIVEN install() and torch's own switch WHEN create_graph=True THEN the normal engine runs it
    and the backward of that is captured: the second derivative of w^3 is 6 w."""
    w = torch.arange(1.0, 4.0, requires_grad=True)
    ca.install()
    with captures() as found, torchs._enable(as_it_is, False):
        (first,) = torch.autograd.grad((w**3).sum(), [w], create_graph=True)
        assert not found
        first.sum().backward()
    assert len(found) == 1
    assert torch.allclose(w.grad, 6 * w.detach())


def test_torchs_own_context_inside_ours(model: nn.Linear) -> None:
    """Nested in either order, each captures its own and cached graphs never mix."""
    seen: list[str] = []

    def torchs_compiler(graph: Any) -> Any:
        seen.append("torch")
        return graph

    with captures() as found, ca.enable(as_it_is):
        model(X).sum().backward()
        with torchs._enable(torchs_compiler):
            clear(list(model.parameters()))
            torch.autograd.grad(model(X).square().sum(), list(model.parameters()))
        clear(list(model.parameters()))
        model(X).sum().backward()
    assert len(found) == 1
    assert seen == ["torch"]


def test_hits_and_misses_reach_listeners(model: nn.Linear) -> None:
    hits: list[tuple[int, bool]] = []
    missed: list[int] = []
    listener = ca.Listener(
        captured=lambda c: missed.append(c.id), ran=lambda c, hit: hits.append((c.id, hit))
    )
    listeners = ca.AutogradCompilerInstance.listeners
    listeners.append(listener)
    try:
        with ca.enable(as_it_is, dynamic=False):
            for batch in (X, X, X[:2]):
                clear(list(model.parameters()))
                model(batch).sum().backward()
            model(X).sum().backward()
    finally:
        listeners.remove(listener)
    assert [hit for _, hit in hits] == [False, True, False, False]
    assert missed == [capture for capture, hit in hits if not hit]


def test_another_thread_waits_for_a_capture() -> None:
    """GIVEN a thread whose backward is being compiled WHEN another one begins a backward THEN
    that runs once the compiler is done, although the first one has not finished."""
    first, second = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    compiling, second_done = threading.Event(), threading.Event()
    waited: list[bool] = []
    errors: list[Exception] = []

    def slow(graph: Any) -> Any:
        compiling.set()
        waited.append(second_done.wait(0.2))
        return graph

    def other() -> None:
        compiling.wait(60)
        try:
            (second * 3).sum().backward()
        except Exception as error:
            errors.append(error)
        second_done.set()

    thread = threading.Thread(target=other)
    handle = first.register_hook(lambda g: waited.append(second_done.wait(60)))
    with ca.enable(slow, dynamic=False):
        thread.start()
        (first * 2).sum().backward()
        thread.join()
        assert torchs.compiled_autograd_enabled
    handle.remove()
    assert not errors
    # Not while the first was compiled, but while it ran.
    assert waited == [False, True]
    assert torch.equal(first.grad, torch.full((3,), 2.0))
    assert torch.equal(second.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize("before", [True, False])
def test_turning_off_restores_how_many_threads_the_engine_uses(before: bool) -> None:
    enabled = torch._C._is_multithreading_enabled
    with torch.autograd.set_multithreading_enabled(before):
        ca.turn_on(as_it_is)
        assert not enabled()
        ca.turn_off()
        assert enabled() is before
        ca.turn_on(as_it_is)
        torch._dynamo.reset()  # off, and nobody asked turn_off()
        ca.turn_on(as_it_is)
        ca.turn_off()
        assert enabled() is before

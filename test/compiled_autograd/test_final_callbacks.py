"""Callbacks that hooks queue run once, when the backward's gradients are there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from memprof import compiled_autograd as ca


def queue(callback: Callable[[], Any]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


COMPILERS: dict[str, Any] = {
    "as_it_is": lambda graph: graph,
    "eager": functools.partial(torch.compile, backend="eager"),
    "whole": functools.partial(torch.compile, backend="eager", fullgraph=True),
    "aot_eager": functools.partial(torch.compile, backend="aot_eager"),
}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_callback_runs_once_a_backward_and_sees_its_gradient(compiler: str) -> None:
    """GIVEN a loss 3 w WHEN the n-th backward of an accumulation ends THEN the callback that its
    hook queued sees 3 n, and what backward() returns to sees no callback left."""
    w = torch.ones(4, requires_grad=True)
    seen: list[Tensor | None] = []

    def hook(grad: Tensor) -> None:
        queue(lambda: seen.append(None if w.grad is None else w.grad.clone()))

    w.register_hook(hook)
    with ca.enable(COMPILERS[compiler], False):
        for n in range(1, 5):
            (w * 3).sum().backward()
            assert len(seen) == n
            assert torch.equal(seen[-1], torch.full((4,), 3.0 * n))


def test_with_capture() -> None:
    w = torch.ones(4, requires_grad=True)
    seen: list[bool] = []
    w.register_hook(lambda grad: queue(lambda: seen.append(w.grad is not None)))
    ca.capture(lambda: (w * 3).sum().backward())
    assert seen == [True]


def test_under_torchs_own_switch() -> None:
    w = torch.ones(4, requires_grad=True)
    seen: list[bool] = []
    w.register_hook(lambda grad: queue(lambda: seen.append(w.grad is not None)))
    ca.install()
    try:
        with torch._dynamo.config.patch(compiled_autograd=True):

            @torch.compile(backend="aot_eager")
            def step() -> None:
                (w * 3).sum().backward()

            step()
    finally:
        ca.uninstall()
    assert seen == [True]


@pytest.mark.parametrize("compiler", ["as_it_is", "eager", "whole"])
def test_hooks_of_every_kind_queue_and_callbacks_queue_more(compiler: str) -> None:
    """Callbacks run in the order in which they were queued, which is the normal engine's."""
    seen: list[str] = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            queue(lambda: seen.append("function"))
            return grad * 2

    def more() -> None:
        seen.append("first")
        queue(lambda: seen.append("queued by first"))

    w = torch.ones(4, requires_grad=True)
    w.register_hook(lambda grad: queue(lambda: seen.append("leaf")))
    w.register_post_accumulate_grad_hook(lambda p: queue(lambda: seen.append("accumulated")))

    def step() -> list[str]:
        seen.clear()
        w.grad = None
        x = w * 3
        y = Twice.apply(x)
        assert y.grad_fn is not None
        y.register_hook(lambda grad: queue(more))
        y.grad_fn.register_prehook(lambda grads: queue(lambda: seen.append("pre")))
        y.sum().backward()
        assert torch.equal(w.grad, torch.full((4,), 6.0))
        return list(seen)

    wanted = step()
    assert len(wanted) == 6
    with ca.enable(COMPILERS[compiler], False):
        for _ in range(2):
            assert step() == wanted


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_queued_on_both_sides_of_a_graph_break(compiler: str) -> None:
    seen: list[str] = []
    w = torch.ones(4, requires_grad=True)

    def before(grad: Tensor) -> Tensor:
        scaled = grad * 5
        queue(lambda: seen.append(f"before {int(scaled.sum())}"))
        return grad

    def breaks(grad: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return grad * 2

    def after(grad: Tensor) -> None:
        queue(lambda: seen.append("after"))

    for hook in (before, breaks, after):
        w.register_hook(hook)
    with ca.enable(COMPILERS[compiler], False):
        for n in (1, 2, 3):
            (w * 3).sum().backward()
            assert seen == ["before 60", "after"] * n
            assert torch.equal(w.grad, torch.full((4,), 6.0 * n))


@pytest.mark.parametrize("compiler", ["as_it_is", "eager", "aot_eager"])
def test_a_backward_inside_of_a_hook_has_callbacks_of_its_own(compiler: str) -> None:
    """GIVEN a hook that begins another backward, and one that both backwards call, which Dynamo
    traces in the graph of the outer one and by itself in the inner THEN each backward calls what
    was queued in it."""
    seen: list[str] = []
    w, inner = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)

    def of_both(grad: Tensor) -> Tensor:
        scaled = grad * 2
        name = "outer" if len(grad) == 4 else "inner"
        queue(lambda: seen.append(name))
        return scaled

    def hook(grad: Tensor) -> None:
        with torch.enable_grad():
            loss = (inner * 2).sum()
        loss.backward()
        seen.append("inner is over")

    def step() -> list[str]:
        seen.clear()
        inner.grad = w.grad = None
        (w * 3).sum().backward()
        assert torch.equal(inner.grad, torch.full((2,), 4.0))
        assert torch.equal(w.grad, torch.full((4,), 12.0))
        return list(seen)

    inner.register_hook(of_both)
    for outer in (of_both, hook, of_both):
        w.register_hook(outer)
    wanted = step()
    assert wanted == ["inner", "inner is over", "outer", "outer"]
    with ca.enable(COMPILERS[compiler], False):
        for _ in range(3):
            assert step() == wanted


@pytest.mark.parametrize("compiled", [False, True])
def test_another_threads_backward_keeps_its_callbacks(compiled: bool) -> None:
    """GIVEN a captured graph that runs WHEN a hook of another thread's backward queues THEN its
    callback runs at the end of that backward, in that thread; also if Dynamo looks at that hook,
    since a compiled function has begun the backward."""
    seen: list[tuple[str, bool]] = []
    running, done = threading.Event(), threading.Event()
    w, other = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)

    def note(name: str) -> Callable[[], None]:
        return lambda: seen.append((name, threading.current_thread() is thread))

    def hook(grad: Tensor) -> None:
        queue(note("captured"))
        running.set()
        assert done.wait(60)

    def second() -> None:
        assert running.wait(60)
        run()
        done.set()

    def run() -> None:
        (other * 2).sum().backward()

    def traced(grad: Tensor) -> Tensor:
        doubled = grad * 2
        queue(note("normal"))
        return doubled

    if compiled:
        run = torch.compile(run, backend="eager")
    w.register_hook(hook)
    other.register_hook(traced)
    thread = threading.Thread(target=second)
    with ca.enable(COMPILERS["as_it_is"], False):
        thread.start()
        (w * 3).sum().backward()
        thread.join()
    assert seen == [("normal", True), ("captured", False)]
    assert torch.equal(other.grad, torch.full((2,), 4.0))


@pytest.mark.parametrize("where", ["hook", "callback"])
def test_an_error_leaves_no_callback_behind(where: str) -> None:
    """As in the normal engine: what comes after the error is not called, then or ever."""
    seen: list[str] = []
    fails = [True]
    w = torch.ones(4, requires_grad=True)

    def fail() -> None:
        if fails[0]:
            raise ValueError("of the user")

    def hook(grad: Tensor) -> None:
        queue(lambda: seen.append("first"))
        if where == "hook":
            fail()
        queue(fail)
        queue(lambda: seen.append("last"))

    w.register_hook(hook)
    for captured in (False, True):
        seen.clear()
        fails[0] = True
        context = ca.enable(COMPILERS["as_it_is"], False) if captured else ca.disable()
        with context:
            with pytest.raises(ValueError, match="of the user"):
                (w * 3).sum().backward()
            assert seen == ([] if where == "hook" else ["first"]), captured
            fails[0] = False
            seen.clear()
            (w * 3).sum().backward()
            assert seen == ["first", "last"], captured


def test_what_grad_returns_is_computed_before_callbacks() -> None:
    seen: list[str] = []
    w = torch.ones(4, requires_grad=True)
    y = w * 2
    y.register_hook(lambda grad: queue(lambda: seen.append("called")))
    with ca.enable(COMPILERS["as_it_is"], False):
        (grad,) = torch.autograd.grad((y * 3).sum(), [w])
    assert torch.equal(grad, torch.full((4,), 6.0))
    assert seen == ["called"]


def test_the_engine_is_torchs_own_again() -> None:
    before = torch.autograd.Variable._execution_engine
    w = torch.ones(4, requires_grad=True)
    inside: list[Any] = []
    w.register_hook(
        lambda grad: inside.append(torch.autograd.Variable._execution_engine.is_checkpoint_valid())
    )
    with ca.enable(COMPILERS["as_it_is"], False):
        (w * 3).sum().backward()
    assert inside == [True]
    assert torch.autograd.Variable._execution_engine is before

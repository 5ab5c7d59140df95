"""The process-wide switch, with contexts of several threads that overlap."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd as torchs
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from memprof import compiled_autograd as ca

from .support import captures


def as_it_is(graph: Any) -> Any:
    return graph


class Other:
    """A thread that is inside of a context from ``enter()`` to ``leave()``."""

    def __init__(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        self._steps = [threading.Event() for _ in range(4)]
        self._thread = threading.Thread(target=self._run, args=(context,))
        self._thread.start()

    def _run(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        enter, entered, leave, _ = self._steps
        assert enter.wait(60)
        with context():
            entered.set()
            assert leave.wait(60)

    def enter(self) -> None:
        self._steps[0].set()
        assert self._steps[1].wait(60)

    def leave(self) -> None:
        self._steps[2].set()
        self._thread.join()


def captured() -> bool:
    """Whether a backward that begins now is captured; its gradient is checked."""
    w = torch.ones(3, requires_grad=True)
    with captures() as found:
        # A node that no other graph has, so that no cached graph hides a capture.
        ca.engine.forget_captured_graphs()
        (w * 2).sum().backward()
    assert torch.equal(w.grad, torch.full((3,), 2.0))
    return bool(found)


@contextlib.contextmanager
def switched_on(how: str) -> Iterator[None]:
    """Captures inside, by either way, and nothing of it afterwards."""
    with ca.enable(as_it_is, False) if how == "enable" else contextlib.nullcontext():
        if how == "turn_on":
            assert ca.turn_on(as_it_is)
        yield
    if how == "turn_on":
        ca.turn_off()
    assert not captured()
    assert not torchs.compiled_autograd_enabled


@pytest.mark.parametrize("how", ["enable", "turn_on"])
def test_two_threads_in_disable(how: str) -> None:
    """GIVEN two threads in disable() WHEN the one that came first leaves first THEN it is off
    until the other has left, and on again from then."""

    with switched_on(how):
        first, second = Other(ca.disable), Other(ca.disable)
        assert captured()
        first.enter()
        second.enter()
        assert not captured()
        first.leave()
        assert not captured()
        second.leave()
        assert captured()
        assert torchs.compiled_autograd_enabled
        assert not torchs.active_disable_ctx


def test_enable_in_two_threads() -> None:
    """Each has what it asked for as long as it is the later one, and nothing stays behind."""
    entry = torch.autograd._engine_run_backward
    compiled: list[str] = []

    def note(name: str) -> Callable[[Any], Any]:
        def compiler(graph: Any) -> Any:
            compiled.append(name)
            return graph

        return compiler

    by_first, by_second = note("first"), note("second")
    first = Other(lambda: ca.enable(by_first, False))
    second = Other(lambda: ca.enable(by_second, False))
    first.enter()
    second.enter()
    assert captured()
    first.leave()
    assert captured()
    # create_graph runs normally although the one that came first took its entry away.
    w = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad((w * w).sum(), [w], create_graph=True)
    assert gradient.requires_grad
    second.leave()
    assert not captured()
    assert compiled == ["second", "second"]
    assert torch.autograd._engine_run_backward is entry


@pytest.mark.parametrize("context", ["disable", "enable"])
def test_a_context_that_opens_while_a_captured_graph_runs(context: str) -> None:
    """GIVEN a captured graph that runs WHEN another thread enters a context and the graph is over
    first THEN the context is in force from then until it is left; a backward in a hook meanwhile
    runs in the normal engine."""
    seen: list[bool] = []
    other = Other(ca.disable if context == "disable" else lambda: ca.enable(as_it_is, False))

    def hook(grad: Tensor) -> None:
        other.enter()
        with torch.enable_grad():
            seen.append(captured())

    w = torch.ones(3, requires_grad=True)
    w.register_hook(hook)
    with ca.enable(as_it_is, False):
        (w * 3).sum().backward()
        assert seen == [False]
        assert captured() is (context == "enable")
        other.leave()
        assert captured()
    assert not captured()


@pytest.mark.parametrize("how", ["enable", "turn_on"])
def test_a_compilation_that_begins_while_a_captured_graph_runs(how: str) -> None:
    """GIVEN a captured graph that runs WHEN another thread compiles, which AOTAutograd does with
    compiled autograd off, and the graph is over first THEN it is off as long as that compiles,
    and on again from then."""
    compiling, compiled = threading.Event(), threading.Event()

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiling.set()
        assert compiled.wait(60)
        return make_boxed_func(graph.forward)

    def compile_something() -> None:
        backend = aot_autograd(fw_compiler=compiler)
        torch.compile(lambda t: t * 3, backend=backend)(torch.ones(3, requires_grad=True))

    thread = threading.Thread(target=compile_something)

    def hook(grad: Tensor) -> None:
        thread.start()
        assert compiling.wait(60)

    with switched_on(how):
        w = torch.ones(3, requires_grad=True)
        w.register_hook(hook)
        (w * 3).sum().backward()
        assert not captured()
        compiled.set()
        thread.join()
        assert captured()


def test_switching_on_while_another_thread_compiles() -> None:
    """Leaving torch's own ``_disable`` does not undo what came meanwhile."""
    other = Other(torchs._disable)
    other.enter()
    with ca.enable(as_it_is, False):
        assert captured()
        other.leave()
        assert captured()
    assert not captured()


def test_turning_off_while_another_thread_is_in_disable() -> None:
    """torch._dynamo.reset() may come at any time; leaving disable() does not undo it."""
    ca.turn_on(as_it_is)
    other = Other(ca.disable)
    other.enter()
    ca.turn_off()
    other.leave()
    assert not captured()
    assert not torchs.compiled_autograd_enabled


def test_another_compiler_while_a_graph_is_captured() -> None:
    """GIVEN a thread whose backward is being captured WHEN another brings another compiler THEN
    the engine's cache, into which that capture points, is emptied afterwards."""
    other = Other(lambda: ca.enable(lambda graph: graph, False))

    def compiler(graph: Any) -> Any:
        other.enter()
        return graph

    w = torch.ones(3, requires_grad=True)
    with ca.enable(compiler, False):
        (w * 2).sum().backward()
        assert torch.equal(w.grad, torch.full((3,), 2.0))
        other.leave()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch calls CUDA, which bears no fork")
@pytest.mark.parametrize("who", ["another thread", "its hook"])
def test_a_child_that_is_forked_while_a_captured_graph_runs(who: str) -> None:
    """GIVEN a thread whose captured graph runs, and one in disable() WHEN the process forks
    THEN in the child neither goes on, and the engine is torch's own. A hook that forks is itself
    in the child, and so is what it runs in."""
    engine = torch.autograd.Variable._execution_engine
    running, done = threading.Event(), threading.Event()
    statuses: list[int] = []

    def in_child() -> bool:
        inner = torch.ones(3, requires_grad=True)
        with torch.enable_grad():
            (inner * 3).sum().backward()
        runs = who == "its hook"
        return (
            torch.equal(inner.grad, torch.full((3,), 3.0))
            and torchs.in_compiled_autograd_region == runs == ca.engine.SWITCH.running
            and (torch.autograd.Variable._execution_engine is not engine) == runs
            and torchs.compiled_autograd_enabled != runs
            and not ca.engine.SWITCH.off_on_purpose
        )

    def fork() -> None:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(600)  # its end, should it wait for what never comes
                right = in_child()
                if who == "another thread":
                    ca.reset()
                os._exit(0 if right else 1)
            finally:
                os._exit(2)
        statuses.append(os.waitpid(child, 0)[1])

    def hook(grad: Tensor) -> None:
        if who == "its hook":
            fork()
        running.set()
        assert done.wait(60)

    def backward() -> None:
        w = torch.ones(3, requires_grad=True)
        w.register_hook(hook)
        (w * 3).sum().backward()

    off = Other(ca.disable)
    thread = threading.Thread(target=backward)
    with ca.enable(as_it_is, False):
        thread.start()
        assert running.wait(60)
        off.enter()
        if who == "another thread":
            fork()
        done.set()
        thread.join()
        off.leave()
        assert captured()
    assert statuses == [0]


def test_an_interrupt_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a cache that is to be emptied when a backward's turn begins WHEN Ctrl+C comes just then
    THEN the cache is emptied before the next capture, and another thread gets its turn."""
    from memprof.compiled_autograd import _torch_compat

    clear_cache = _torch_compat.clear_cache
    cleared: list[bool] = []

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        clear_cache()

    def noted() -> None:
        cleared.append(True)
        clear_cache()

    def compiler(graph: Any) -> Any:
        ca.engine.forget_captured_graphs()
        return graph

    w = torch.ones(3, requires_grad=True)

    def step() -> None:
        (w * 2).sum().backward()

    with ca.enable(compiler, False):
        step()
        monkeypatch.setattr(_torch_compat, "clear_cache", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step()
        monkeypatch.setattr(_torch_compat, "clear_cache", noted)
        thread = threading.Thread(target=step, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert cleared == [True]
    assert torch.equal(w.grad, torch.full((3,), 4.0))


def test_a_backward_that_the_engine_refuses_because_it_is_busy() -> None:
    """GIVEN a captured graph that runs WHEN whoever switched meanwhile makes the engine refuse a
    backward THEN that one runs in the normal engine."""
    from memprof.compiled_autograd import _torch_compat

    inner = torch.ones(2, requires_grad=True)

    def hook(grad: Tensor) -> None:
        prior = _torch_compat.set_compiler(factory[0], False)
        try:
            with torch.enable_grad():
                (inner * 2).sum().backward()
        finally:
            _torch_compat.set_compiler(*prior)

    w = torch.ones(3, requires_grad=True)
    w.register_hook(hook)
    with ca.enable(as_it_is, False):
        factory = _torch_compat.set_compiler(None, False)
        _torch_compat.set_compiler(*factory)
        (w * 3).sum().backward()
    assert torch.equal(inner.grad, torch.full((2,), 2.0))
    assert torch.equal(w.grad, torch.full((3,), 3.0))

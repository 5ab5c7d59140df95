"""Calls that go past AOTAutograd's run-time wrapper do all that calls through it do."""

from __future__ import annotations

import contextvars
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from in_threads import run_in_threads
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from memprof.compile_backend import straight_calls as calls
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.profiler.model import LedgerKind

from .features import FEATURES
from .test_features import _assert_same

Compile = Callable[..., Any]


pytestmark = pytest.mark.usefixtures("at_once")


def _both(program: Callable[[Compile], Any]) -> tuple[Any, Any]:
    """What a program returns with straight calls, and with torch's wrapper."""

    def run(on: bool) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(1234)
        options = {"straight_calls": on}

        def compile(fn: Any, **given: Any) -> Any:
            given["options"] = {**options, **given.pop("options", {})}
            return torch.compile(fn, backend="memprof", **given)

        return program(compile)

    before = RUNTIME.ledger.counts()
    straight, torchs = run(True), run(False)
    since = RUNTIME.ledger.entries_since(before)
    assert not [e.reason for e in since if e.kind is LedgerKind.FALLBACK]
    return straight, torchs


def _raised(fn: Callable[[], Any]) -> str:
    try:
        fn()
    except Exception as error:
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return "nothing"


def test_most_graphs_are_straight(made: list[str]) -> None:
    for name in ("static_shapes", "dynamic_true", "graph_breaks"):
        torch._dynamo.reset()
        FEATURES[name](functools.partial(torch.compile, backend="memprof"))
    assert set(made) == {"straight"}


@pytest.mark.parametrize(
    "fn", [lambda x, a: (x * a, x.view(-1)), lambda x, a: (a.mul_(2) * x,)], ids=["view", "write"]
)
def test_a_graph_that_does_more_keeps_torchs_wrapper(
    fn: Callable[..., Any], made: list[str]
) -> None:
    w = torch.ones(3, 2, requires_grad=True)
    torch.compile(fn, backend="memprof")(torch.ones(3, 2), w * 1)[0].sum().backward()
    assert w.grad is not None
    assert made == ["torch's"]


def test_off_by_an_option(made: list[str]) -> None:
    w = torch.ones(3, requires_grad=True)
    off = {"straight_calls": False}
    torch.compile(lambda x: x * w, backend="memprof", options=off)(torch.ones(3)).sum().backward()
    assert made == []


def test_with_another_torch_nothing_is_replaced(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls.compat, "has_known_wrapper", lambda: False)
    w = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: x * w, backend="memprof")(torch.ones(3)).sum().backward()
    assert made == []


def test_a_failure_of_ours_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(calls, "_derived", fails)
    w = torch.ones(3, requires_grad=True)
    before = RUNTIME.ledger.counts()
    torch.compile(lambda x: x * w, backend="memprof")(torch.ones(3)).sum().backward()
    assert w.grad is not None
    reasons = [e.reason for e in RUNTIME.ledger.entries_since(before)]
    assert any("straight call" in r and "planted" in r for r in reasons)


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))


def _steps(
    compile: Compile, around: Callable[[Callable[[], Any]], Any] = lambda step: step()
) -> Any:
    model = _net()
    compiled = compile(model)
    x = torch.randn(6, 8, requires_grad=True)
    seen = []
    for _ in range(3):

        def step() -> Any:
            y = compiled(x)
            y.square().mean().backward()
            return y

        y = around(step)
        seen.append([y.detach(), y.requires_grad, y.is_leaf, y.grad_fn.name(), y._version])
        seen.append([p.grad.clone() for p in model.parameters()] + [x.grad.clone()])
        seen.append([(b.clone(), b._version) for b in model.buffers()])
        x.grad = None
    return seen


PROGRAMS: dict[str, Callable[[Compile], Any]] = {"training_steps": _steps}


def program(function: Callable[[Compile], Any]) -> Callable[[Compile], Any]:
    PROGRAMS[function.__name__] = function
    return function


@program
def autocast_at_the_backward_alone(compile: Compile) -> Any:
    w = torch.randn(8, 8, requires_grad=True)
    compiled = compile(lambda x: (x @ w).sin())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(torch.ones(8, 8)).float().sum()
            loss.backward()
    return w.grad


@program
def grad_modes_around_a_call(compile: Compile) -> Any:
    w = torch.randn(8, requires_grad=True)
    compiled = compile(lambda x: x * w)
    x = torch.ones(8)
    seen: list[Any] = []
    for _ in range(2):
        seen.append(compiled(x).requires_grad)
        with torch.no_grad():
            seen.append(compiled(x).requires_grad)
            with torch.enable_grad():
                seen.append(compiled(x).requires_grad)
        with torch.inference_mode():
            seen.append(compiled(x).is_inference())
    return seen


@program
def calls_without_a_backward(compile: Compile) -> Any:
    w = torch.randn(8, requires_grad=True)
    chosen = compile(lambda x: (x * w).argmax())
    written = compile(lambda x, y: x.add_(y) * 2)
    x = torch.zeros(8)
    seen: list[Any] = []
    for _ in range(3):
        seen += [chosen(torch.ones(8)), torch.is_grad_enabled()]
        seen += [written(x, torch.ones(8)), x.clone(), x._version]
        with torch.no_grad():
            seen += [chosen(torch.ones(8)), torch.is_grad_enabled()]
        with torch.inference_mode():
            y = written(torch.zeros(8), torch.ones(8))
            seen += [y.clone(), y.is_inference()]
    return seen


def test_calls_without_a_backward_are_straight(made: list[str]) -> None:
    calls_without_a_backward(functools.partial(torch.compile, backend="memprof"))
    assert set(made) == {"straight"}


def test_gradients_are_on_again_after_a_call_that_fails(made: list[str]) -> None:
    w = torch.ones(8, requires_grad=True)
    compiled = torch.compile(lambda x, i: (x * w)[i].argmax(), backend="memprof")
    for i in (0, 1):
        compiled(torch.ones(8, 8), torch.tensor([i]))
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        compiled(torch.ones(8, 8), torch.tensor([9]))
    assert torch.is_grad_enabled()
    assert made == ["straight"]


def test_a_subclass_in_a_graph_without_a_backward_is_no_change_of_metadata(made: list[str]) -> None:
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="memprof")
    before = RUNTIME.ledger.counts()
    with torch.no_grad():
        out = compiled(TwoTensor(torch.ones(4), torch.ones(4)))
    assert type(out) is TwoTensor
    assert not [e for e in RUNTIME.ledger.entries_since(before) if "has changed" in e.reason]
    assert "straight" not in made


@program
def a_graph_that_turns_gradients_on_itself(compile: Compile) -> Any:
    w = torch.randn(8, requires_grad=True)

    @compile
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return x * w

    with torch.no_grad():
        outs = [compiled(torch.ones(8)) for _ in range(2)]
    outs[1].sum().backward()
    return [o.requires_grad for o in outs], w.grad, torch.is_grad_enabled()


def test_retained_graphs_and_second_backwards() -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(8, requires_grad=True)
        compiled = compile(lambda x: (x * w).sin())
        said = []
        for _ in range(3):
            y = compiled(torch.ones(8)).sum()
            y.backward(retain_graph=True)
            y.backward()
            said.append(_raised(y.backward))
        said.append(_raised(lambda: torch.autograd.grad(compiled(torch.ones(8)).sum(), w)))
        (g,) = torch.autograd.grad(compiled(torch.ones(8)).sum(), w, create_graph=True)
        said.append(g.requires_grad)
        said.append(_raised(g.sum().backward))
        return w.grad, said

    straight, torchs = _both(program)
    assert "backward through the graph a second time" in straight[1][0]
    _assert_same(straight, torchs)


@program
def hooks_of_all_kinds(compile: Compile) -> Any:
    w = nn.Parameter(torch.randn(8))
    seen: list[Any] = []
    w.register_hook(lambda g: seen.append(("tensor", g.clone())))
    w.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.grad.clone())))
    compiled = compile(lambda x: ((x * w).sin(), (x + w).cos()))
    for _ in range(2):
        a, _ = compiled(torch.ones(8))
        node = a.grad_fn
        node.register_prehook(lambda gs: seen.append(("pre", [g is None for g in gs])))
        node.register_hook(lambda gi, go: seen.append(("node", len(gi), len(go))))
        a.register_hook(lambda g: g * 2)
        a.sum().backward()
    return seen, w.grad


@program
def hooks_for_saved_tensors_are_called_as_often(compile: Compile) -> Any:
    w = torch.randn(8, requires_grad=True)
    compiled = compile(lambda x: (x * w).sin())
    packed: list[Any] = []

    def pack(x: torch.Tensor) -> Any:
        packed.append(("pack", x.shape))
        return x.clone()

    def unpack(x: Any) -> Any:
        packed.append(("unpack", x.shape))
        return x

    compiled(torch.ones(8))
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = compiled(torch.ones(8))
        y.sum().backward()
    return packed, w.grad


def test_an_input_that_was_written_to_before_the_backward_is_noticed() -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(8, requires_grad=True)
        compiled = compile(lambda x: x * w)
        said = []
        for _ in range(2):
            x = torch.ones(8)
            y = compiled(x)
            x.add_(1)
            said.append(_raised(y.sum().backward).partition("[")[0])
        return said

    straight, torchs = _both(program)
    assert "modified by an inplace operation" in straight[0]
    assert straight == torchs


@program
def gradients_of_other_strides_and_gradients_that_are_missing(compile: Compile) -> Any:
    w = torch.randn(8, 4, requires_grad=True)
    compiled = compile(lambda x: ((x * w).sin(), (x + w).cos()))
    grads = []
    for g in (torch.ones(4, 8).t(), torch.ones(1, 1).expand(8, 4), torch.randn(8, 4)):
        a, b = compiled(torch.ones(8, 4))
        a.backward(g)
        grads.append(w.grad.clone())
        a, b = compiled(torch.ones(8, 4))
        b.backward(g)
    return grads, w.grad


@program
def views_that_nobody_can_reach_may_be_written_to(compile: Compile) -> Any:
    layer = nn.Linear(4, 6)
    compiled = compile(layer)
    for _ in range(2):
        y = compiled(torch.ones(2, 3, 4))
        y.mul_(2).add_(1)
        y.sum().backward()
    return y, layer.weight.grad, y._is_view()


def test_sizes_that_vary_are_saved(made: list[str]) -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(4, requires_grad=True)
        compiled = compile(lambda x: (x.sum(0) / x.shape[0] * w).sin(), dynamic=True)
        for n in (3, 5, 7):
            compiled(torch.randn(n, 4)).sum().backward()
        return w.grad

    _assert_same(*_both(program))
    assert made == ["straight"]


@program
def outputs_without_gradient_are_marked(compile: Compile) -> Any:
    w = torch.randn(6, requires_grad=True)
    compiled = compile(lambda x: (x * w, (x * w).argmax(), x + 1, None, 3))
    for _ in range(2):
        outs = compiled(torch.arange(6.0))
        outs[0].sum().backward()
    return [getattr(o, "requires_grad", o) for o in outs], w.grad


def test_deterministic_algorithms_asked_for_at_the_backward() -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(6, requires_grad=True)
        compiled = compile(lambda x: (x * w).sin())
        compiled(torch.ones(6)).sum().backward()
        y = compiled(torch.ones(6)).sum()
        torch.use_deterministic_algorithms(True)
        try:
            return _raised(y.backward)
        finally:
            torch.use_deterministic_algorithms(False)

    straight, torchs = _both(program)
    assert "use_deterministic_algorithms" in straight
    assert straight == torchs


def test_a_profiler_sees_the_same_names() -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(6, requires_grad=True)
        compiled = compile(lambda x: (x * w).sin())
        for _ in range(2):
            compiled(torch.ones(6)).sum().backward()
        with torch.profiler.profile() as found:
            compiled(torch.ones(6)).sum().backward()
        names = {e.name for e in found.events()}
        kept = ("CompiledFunction", "AOTDispatcher", "Torch-Compiled")
        return sorted(n for n in names if n.startswith(kept)), any(
            n.startswith("## Call CompiledFxGraph") for n in names
        )

    straight, torchs = _both(program)
    assert straight == torchs
    assert straight[1]


def test_context_variables_of_who_calls_backward() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="unset")

    def program(compile: Compile) -> Any:
        seen = []
        w = torch.randn(6, requires_grad=True)
        w.register_hook(lambda g: seen.append(variable.get()))
        compiled = compile(lambda x: (x * w).sin())

        def run() -> None:
            for _ in range(2):
                compiled(torch.ones(6)).sum().backward()

        variable.set("main")
        run()
        run_in_threads(run)
        return seen, w.grad

    _assert_same(*_both(program))


def test_what_is_saved_dies_in_the_backward() -> None:
    def program(compile: Compile) -> Any:
        w = torch.randn(64, requires_grad=True)
        compiled = compile(lambda x: (x * w).sin())
        for _ in range(2):
            compiled(torch.ones(64)).sum().backward()
        x = torch.ones(64)
        died = weakref.ref(x)
        y = compiled(x)
        del x
        held = died() is not None
        y.sum().backward()
        return held, died() is not None

    straight, torchs = _both(program)
    assert straight == torchs == (True, False)


def test_nothing_is_left_after_a_reset() -> None:
    w = torch.randn(8, requires_grad=True)
    compiled = torch.compile(lambda x: x * w, backend="memprof")
    for _ in range(3):
        compiled(torch.ones(8)).sum().backward()
    function = compiled(torch.ones(8)).grad_fn._forward_cls
    assert function.__mro__[1].__name__ == "CompiledFunction"  # Ours derives from torch's.
    died = weakref.ref(function)
    del function, compiled
    torch._dynamo.reset()
    gc.collect()
    assert died() is None


def test_torchs_backward_after_a_straight_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout of what is saved is the one that torch's backward reads."""
    monkeypatch.setattr(calls.compat, "graph_is_kept", lambda: True)

    def program(compile: Compile) -> Any:
        w = torch.randn(4, requires_grad=True)
        compiled = compile(lambda x: (x.sum(0) / x.shape[0] * w).sin(), dynamic=True)
        for n in (3, 5):
            compiled(torch.randn(n, 4)).sum().backward()
        return w.grad

    _assert_same(*_both(program))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_and_sees_what_it_does_with_torchs_wrapper(name: str) -> None:
    _assert_same(*_both(PROGRAMS[name]))

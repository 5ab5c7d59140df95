"""Graphs and situations at the edge of straight calls: what torch's wrapper does there is kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from memprof.compile_backend import _torch_compat as compat

pytestmark = pytest.mark.usefixtures("at_once")


def _compile(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend="memprof", options=options)


def _sine(x: Tensor) -> Tensor:
    return x.sin()


def test_a_graph_that_uses_objects_of_the_program_keeps_torchs_wrapper(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.15 hands streams and events of the forward to the backward."""
    monkeypatch.setattr(compat, "uses_objects", lambda: True)
    _compile(_sine)(torch.ones(4, requires_grad=True))
    assert made == ["torch's"]


def test_objects_of_the_program_are_those_but_the_current_stream() -> None:
    from torch._dynamo import graph_bytecode_inputs as objects
    from torch._dynamo.source import LocalSource

    found = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(compat.uses_objects())
        objects.register_user_object(graph, LocalSource("graph"))
        found.append(compat.uses_objects())
        objects.reset_user_object_tracking()
        return graph.forward

    torch.compile(_sine, backend=backend)(torch.ones(4))
    assert found == [False, True]


def test_hooks_in_the_graph_reach_compiled_autograd() -> None:
    def hooked(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda grad: grad * 3)
        return y * 2

    with (
        torch._dynamo.config.patch(compiled_autograd=True),
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
    ):
        compiled = _compile(hooked)
        for _ in range(2):
            x = torch.ones(4, requires_grad=True)
            compiled(x).sum().backward()
            assert x.grad is not None
            torch.testing.assert_close(x.grad, 6 * x.detach().cos())


def test_the_order_of_execution_is_recorded() -> None:
    from torch._inductor import debug

    compiled = _compile(_sine)
    x = torch.ones(4, requires_grad=True)
    for _ in range(2):
        compiled(x).sum().backward()
    with debug.record_and_log_graph_execution_order():
        compiled(x).sum().backward()
        order: Any = debug.GRAPH_EXECUTION_ORDER
        assert len(order) == 2


def test_dynamo_does_not_look_into_a_backward_that_runs_inside_of_a_compiled_function() -> None:
    # GIVEN a function whose gradient is asked for where Dynamo looks at every frame
    def seen(backend: str) -> tuple[list[str], dict[str, int]]:
        torch._dynamo.reset()
        counters.clear()
        inner = torch.compile(lambda x: (x**4).sum(), backend=backend)

        def outer(x: Tensor) -> Tensor:
            torch._dynamo.graph_break()
            (gradient,) = torch.autograd.grad(inner(x), x)
            return gradient * 2

        x = torch.tensor([0.5, 1.5], requires_grad=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                got = torch.compile(outer, backend=backend)(x)
                torch.testing.assert_close(got, 8 * x.detach() ** 3)
        told = [str(w.message) for w in caught if "Dynamo" in str(w.message)]
        return told, dict(counters["graph_break"])

    # THEN it sees what it sees with Inductor
    assert seen("memprof") == seen("inductor")

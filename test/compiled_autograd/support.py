"""Running one backward in the normal engine and captured, and comparing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from memprof import compiled_autograd as ca

COMPILERS: dict[str, Callable[..., Any]] = {
    "as_it_is": lambda graph: graph,
    "aot_eager": functools.partial(torch.compile, backend="aot_eager"),
}


@contextlib.contextmanager
def captures() -> Iterator[list[ca.CapturedBackward]]:
    """Collects what is captured inside."""
    found: list[ca.CapturedBackward] = []
    listener = ca.Listener(captured=found.append, ran=lambda capture, hit: None)
    listeners = ca.AutogradCompilerInstance.listeners
    listeners.append(listener)
    try:
        yield found
    finally:
        listeners.remove(listener)


def parameters_of(model: torch.nn.Module) -> list[Tensor]:
    return list(model.parameters())


def clear(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def gradients(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in parameters]


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


def check(
    step: Callable[[], Any],
    parameters: Sequence[Tensor],
    *,
    expect: int = 1,
    runs: int = 2,
    dynamic: bool = False,
    compilers: Sequence[str] = ("as_it_is", "aot_eager"),
) -> None:
    """``step`` in the normal engine and ``runs`` times captured gives the same bits.

    Args:
        step: runs forward and backward; what it returns is compared as well.
        expect: number of captures for all runs together.
    """
    clear(parameters)
    wanted_value = step()
    wanted = gradients(parameters)
    for name in compilers:
        torch._dynamo.reset()
        ca.reset()
        with captures() as found, ca.enable(COMPILERS[name], dynamic=dynamic):
            for run in range(runs):
                clear(parameters)
                value = step()
                assert same(gradients(parameters), wanted), (name, run)
                if isinstance(wanted_value, (tuple, list)):
                    assert same(value, wanted_value), (name, run)
                else:
                    assert value is None or value == wanted_value, (name, run)
        assert len(found) == expect
    clear(parameters)

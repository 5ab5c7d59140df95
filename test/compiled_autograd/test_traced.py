"""Backwards that begin while Dynamo looks at every frame: inside of compiled functions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import captures

OURS = str(Path(ca.__file__).parent.resolve())

COMPILERS: dict[str, Any] = {
    "as_it_is": lambda graph: graph,
    "torch_compile": functools.partial(torch.compile, backend="aot_eager"),
}


def traced_of_ours() -> list[str]:
    """Functions of the package whose frames Dynamo looked at since it was reset."""
    from torch._dynamo.convert_frame import input_codes

    codes = [reference() for reference in input_codes.seen]
    return [
        f"{Path(c.co_filename).name}:{c.co_name}"
        for c in codes
        if c is not None and str(Path(c.co_filename).resolve()).startswith(OURS)
    ]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_backward_inside_a_compiled_function(compiler: str, dynamic: bool) -> None:
    x, y = torch.rand(8, 16), torch.rand(8, 16, requires_grad=True)
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(y, 0)

    @torch.compile(backend="aot_eager")
    def step() -> tuple[Tensor, Tensor | None]:
        y.grad = None
        out = x + 2 * y
        out.sum().backward()
        return out, y.grad

    with captures() as found, ca.enable(COMPILERS[compiler], dynamic):
        for _ in range(2):
            out, gradient = step()
            assert gradient is not None
            torch.testing.assert_close(out, x + 2 * y)
            assert torch.equal(gradient, torch.full_like(y, 2.0))
    assert len(found) == 1
    assert not traced_of_ours()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_compiled_call_of_the_engine(compiler: str) -> None:
    """Other leaves are another graph."""
    x, y, z = (torch.randn(5, requires_grad=True) for _ in range(3))

    def loss() -> Tensor:
        return (x * y * z).sum()

    with captures() as found, ca.enable(COMPILERS[compiler]):
        for leaf, wanted in ((x, y * z), (y, x * z)):
            of = loss()
            torch.compile(
                lambda of=of, leaf=leaf: torch.autograd.backward(of, inputs=[leaf]), backend="eager"
            )()
            torch.testing.assert_close(leaf.grad, wanted.detach())
    assert len(found) == 2
    assert z.grad is None
    assert not traced_of_ours()


def test_torchs_own_switch_and_sizes_that_change() -> None:
    """The gradient of a weight whose loss is linear in it: sums of what it is multiplied with."""
    model = nn.Linear(4, 4)
    ca.install()

    def call_backward(loss: Tensor) -> None:
        loss.backward()

    with captures() as found, torch._dynamo.config.patch(compiled_autograd=True):
        for batch, parts in ((10, 2), (20, 4), (30, 6)):
            x = torch.randn(batch, 4)
            model.zero_grad()
            torch.compile(call_backward, backend="aot_eager")(model(x).view(parts, -1).sum())
            torch.testing.assert_close(model.weight.grad, x.sum(0).expand(4, 4))
            torch.testing.assert_close(model.bias.grad, torch.full((4,), float(batch)))
    assert 1 <= len(found) <= 2
    assert not traced_of_ours()


def test_switching_inside_a_compiled_function() -> None:
    w = torch.ones(4, requires_grad=True)

    @torch.compile(backend="eager")
    def step() -> None:
        with ca.enable(COMPILERS["as_it_is"], False):
            (w * 3).sum().backward()
            with ca.disable():
                (w * 3).sum().backward()

    with captures() as found:
        step()
    assert torch.equal(w.grad, torch.full((4,), 6.0))
    assert len(found) == 1
    assert not torch._dynamo.compiled_autograd.compiled_autograd_enabled


def test_what_runs_is_compiled_as_without_capturing() -> None:
    """GIVEN a compiled function whose backward has a hook WHEN it is captured and run as it is
    THEN Dynamo looks at the captured graph, as at the hook's frame in the normal engine."""
    from torch._dynamo.convert_frame import input_codes

    def hook(grad: Tensor) -> Tensor:
        return grad * 2

    w = torch.ones(4, requires_grad=True)
    w.register_hook(hook)

    def step() -> None:
        (w * 3).sum().backward()

    for context, looked_at in (
        (ca.disable(), "hook"),
        (ca.enable(COMPILERS["as_it_is"], False), "forward"),
    ):
        torch._dynamo.reset()
        w.grad = None
        with context:
            torch.compile(step, backend="eager")()
        assert torch.equal(w.grad, torch.full((4,), 6.0))
        codes = [reference() for reference in input_codes.seen]
        assert looked_at in [c.co_name for c in codes if c is not None]

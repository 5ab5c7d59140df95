"""The models of the zoo: gradients bit by bit, captures counted."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from models import zoo
from torch import Tensor

from memprof import compiled_autograd as ca

from .support import captures, clear, gradients, same

AOT_EAGER = functools.partial(torch.compile, backend="aot_eager")
AS_IT_IS: Any = lambda graph: graph  # noqa: E731


class Run:
    """A model of the zoo with its state as it was, so that each backward sees the same."""

    def __init__(self, name: str, compile_forward: bool, dynamic: bool | None = None) -> None:
        self.case = zoo.build(name, layers=1)
        self.parameters = list(self.case.model.parameters())
        self._state = {k: v.clone() for k, v in self.case.model.state_dict().items()}
        self.forward: Any = self.case.model
        if compile_forward:
            self.forward = torch.compile(self.case.model, backend="aot_eager", dynamic=dynamic)

    def backward(self, inputs: dict[str, Tensor] | None = None) -> list[Tensor | None]:
        self.case.model.load_state_dict(self._state)
        clear(self.parameters)
        torch.manual_seed(1)
        self.case.loss(self.forward(**(inputs or self.case.inputs))).backward()
        return gradients(self.parameters)


@pytest.mark.parametrize(
    ("name", "compile_forward"),
    [*((name, True) for name in sorted(zoo.MODELS)), ("gpt2", False), ("resnet", False)],
)
def test_gradients_are_the_same_bits(name: str, compile_forward: bool) -> None:
    run = Run(name, compile_forward)
    wanted = run.backward()
    with captures() as found, ca.enable(AOT_EAGER, dynamic=False):
        for _ in range(2):
            assert same(run.backward(), wanted)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "compile_forward"), [("gpt2", False), ("resnet", False), ("resnet", True)]
)
def test_dynamic_batch_sizes(name: str, compile_forward: bool) -> None:
    """One capture for all sizes where the sizes are inputs of the graph from the start.

    The graph runs as it is: compiling one with hundreds of size symbols takes Dynamo
    minutes. test_features compiles a small one.
    """
    run = Run(name, compile_forward, dynamic=True)
    full = run.case.inputs

    def batch(n: int) -> dict[str, Tensor]:
        return {k: v[:n] for k, v in full.items()}

    if name == "resnet":  # its loss has a target for each sample

        def loss(logits: Tensor) -> Tensor:
            return logits.square().mean()

        run.case.loss = loss
    sizes = (4, 3, 2)
    wanted = [run.backward(batch(n)) for n in sizes]
    with captures() as found, ca.enable(AS_IT_IS, dynamic=True):
        for n, expected in zip(sizes, wanted, strict=True):
            assert same(run.backward(batch(n)), expected), n
    assert len(found) == 1

"""Looking at a backward without a compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from memprof import compiled_autograd as ca
from memprof.compiled_autograd.nodes import NodeOrigin, forward_frames, forward_module

from .support import gradients, same


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(x))
        return self.second(hidden)


X = torch.randn(3, 4)


def test_a_plain_backward() -> None:
    model = Model()
    wanted = torch.autograd.grad(model(X).sum(), list(model.parameters()))
    (found,) = ca.capture(lambda: model(X).sum().backward())
    assert same(gradients(list(model.parameters())), wanted)
    origins = found.origins
    assert origins["sum_backward0"] == NodeOrigin("SumBackward0", 1)
    assert {o.autograd_node for o in origins.values()} >= {"AddmmBackward0", "ReluBackward0"}
    nodes = [n for n in found.graph.graph.nodes if n.op != "placeholder"]
    lines = str(found).split("\n")
    assert [line.partition(" ")[0] for line in lines[:-1]] == [n.name for n in nodes[:-1]]
    assert lines[-1].startswith("return")


def test_an_aot_backward_knows_its_forward() -> None:
    """GIVEN a compiled forward WHEN captured THEN nodes lead to forward lines and modules."""
    model = Model()
    compiled = torch.compile(model, backend="aot_eager")
    (found,) = ca.capture(lambda: compiled(X).sum().backward())
    inlined = [n for n in found.graph.graph.nodes if n.name.startswith("aot")]
    origins = [found.origins[n.name] for n in inlined]
    assert {o.autograd_node for o in origins} == {"CompiledFunctionBackward"}
    located = {
        (frame.file, frame.function, frame.code)
        for n in inlined
        if (frame := (forward_frames(n) or (None,))[-1]) is not None
    }
    assert located == {
        (__file__, "forward", "hidden = F.relu(self.first(x))"),
        (__file__, "forward", "return self.second(hidden)"),
    }
    modules = {m for n in inlined if (m := forward_module(n)) is not None}
    assert {("first", "Linear"), ("second", "Linear")} <= modules
    assert "in second" in str(found)
    assert f"forward {__file__}:" in str(found)


def test_several_backwards() -> None:
    model = Model()

    def step() -> None:
        model(X).sum().backward()
        model(X).square().sum().backward()

    first, second = ca.capture(step)
    assert (first.id, second.id) == (0, 1)
    assert len(second.calls) > len(first.calls)


def test_no_backward() -> None:
    with pytest.raises(ca.CaptureError, match="fn ran no backward"):
        ca.capture(lambda: None)


def test_reachable_from_memprof() -> None:
    code = "import memprof; print(memprof.compiled_autograd.capture.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "capture"

"""Faults: training goes on, and its values stay right, where a graph cannot be had."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from proof.common import Part
from proof.subjects import Compiler, zoo
from proof.values import Values, compare, training

WIDTH = 128
TIGHT = 1.05
"""Of what Inductor's run has allocated at its peak: enough without graphs, and little for them."""


@torch.library.custom_op("proof::troubled", mutates_args=())
def troubled(x: Tensor, how: str) -> Tensor:
    """A copy; in a capture it does what none survives, or asks for more than the device has."""
    if how and torch.cuda.is_current_stream_capturing():
        if how == "synchronise":
            torch.cuda.synchronize()
        nbytes = 2 * torch.cuda.get_device_properties(0).total_memory
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return x.clone()


troubled.register_fake(lambda x, how: torch.empty_like(x))
troubled.register_autograd(lambda ctx, gradient: (gradient, None))


class Trouble(nn.Module):
    """The operator as a layer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return troubled(x, self.how)


class Net(nn.Sequential):
    """Layers and their loss, which is compiled too: no graph can make room for eager code."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y.square().mean()


def run(compiler: Compiler, simulated: bool, how: str = "", rows: int = 256) -> Values:
    """Training of linear layers with trouble of the kind ``how`` between them, "" for none: there
    the runs after the first have a limit of memory."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    inputs = {"x": torch.randn(rows, WIDTH)}
    case = zoo.Case(Net(*layers[:4], Trouble(how), *layers[4:]), inputs, lambda loss: loss)
    found = training(case, compiler, steps=6)
    if not how:
        total = torch.cuda.get_device_properties(0).total_memory
        most = TIGHT * torch.cuda.max_memory_allocated()
        torch.cuda.set_per_process_memory_fraction(most / total)
    return found


PART = Part(
    name="faults",
    module="proof.faults",
    about="Training under memprof beside Inductor's, where captures fail or memory is short (1.05 "
    "times what Inductor allocated at its peak): what memprof did instead, and the values.",
    cases={
        "capture fails": partial(compare, run=partial(run, how="synchronise")),
        "out of memory while recording": partial(compare, run=partial(run, how="too much")),
        "limit of memory reached": partial(compare, run=partial(run, rows=2**17)),
    },
    values=True,
)

"""Faults: training goes on, and its values stay right, where a graph cannot be had."""

from __future__ import annotations

from functools import partial

import torch
import torch._inductor.config
from torch import Tensor, nn

from proof.common import Part
from proof.subjects import Compiler, zoo
from proof.values import Values, compare, training

WIDTH = 256


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


def run(compiler: Compiler, simulated: bool, how: str = "") -> Values:
    """Training of linear layers with trouble of the kind ``how`` between them; without any the runs
    after the first may reserve no more than that did, which is enough without graphs."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    if how:
        layers.insert(4, Trouble(how))
    inputs = {"x": torch.randn(256 if how else 65536, WIDTH)}
    case = zoo.Case(Net(*layers), inputs, lambda loss: loss)
    # Inductor tries kernels on copies of what they update: that would need more than its reserved.
    with torch._inductor.config.patch("triton.autotune_pointwise", False):
        found = training(case, compiler, steps=6)
    if not how:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(torch.cuda.max_memory_reserved() / total)
    return found


PART = Part(
    name="faults",
    module="proof.faults",
    about="Training under memprof beside Inductor's, where captures fail or memory is short (no "
    "more than Inductor reserved at its peak): what memprof did instead, and the values.",
    cases={
        "capture fails": partial(compare, run=partial(run, how="synchronise")),
        "out of memory while recording": partial(compare, run=partial(run, how="too much")),
        "limit of memory reached": partial(compare, run=run),
    },
    values=True,
)

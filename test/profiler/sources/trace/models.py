"""Small models of the three kinds that memory profiles are compared on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memprof.profiler import DataFlowProfile, data_flow_device
from memprof.profiler.live.attribution import Breakdown, View, data_flow_breakdown


@dataclass
class Case:
    """A model, its loss and what makes a batch."""

    model: nn.Module
    batch: Callable[[], torch.Tensor]

    def loss(self, model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return model(x).float().pow(2).mean()


def mlp(width: int = 64) -> Case:
    model = nn.Sequential(
        nn.Linear(width, 2 * width),
        nn.ReLU(),
        nn.Linear(2 * width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )
    return Case(model, lambda: torch.randn(16, width))


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.short = (
            nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
            if stride != 1 or cin != cout
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))


def convnet(width: int = 8, blocks: int = 3) -> Case:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    c = width
    for i in range(blocks):
        n = width * 2 ** (i // 2)
        layers.append(Block(c, n, 2 if i and i % 2 == 0 else 1))
        c = n
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10)]
    return Case(nn.Sequential(*layers), lambda: torch.randn(8, 3, 16, 16))


def transformer(width: int = 32, layers: int = 2) -> Case:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True), layers
    )
    return Case(nn.Sequential(encoder, nn.Linear(width, 10)), lambda: torch.randn(4, 16, width))


MODELS: dict[str, Callable[[], Case]] = {"mlp": mlp, "convnet": convnet, "transformer": transformer}


def optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def profiled(**kw: Any) -> torch.profiler.profile:
    """A profiler that records what memory analysis needs."""
    # A tensor of an earlier test that is collected while this records would be live at its start,
    # at an address that a gradient has later.
    gc.collect()
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        **kw,
    )


def at_peak(profile: DataFlowProfile, device: str, view: View = View.CATEGORY) -> Breakdown:
    """What is live at the peak of a device."""
    return data_flow_breakdown(data_flow_device(profile, device).live, view)


def train(case: Case, opt: torch.optim.Optimizer, steps: int, model: Any = None) -> None:
    """Plain training steps."""
    for _ in range(steps):
        opt.zero_grad()
        case.loss(case.model if model is None else model, case.batch()).backward()
        opt.step()


def profile_training(
    name: str, kind: str, steps: int, warmup: int = 0
) -> tuple[torch.profiler.profile, Case, torch.optim.Optimizer]:
    """Train ``steps`` steps under the profiler."""
    torch.manual_seed(0)
    case = MODELS[name]()
    opt = optimizer(kind, case.model)
    train(case, opt, warmup)
    with profiled() as prof:
        train(case, opt, steps)
    return prof, case, opt

"""Advice on programs that really have the problem, and on the same ones mended."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memprof
from memprof.profiler.model import Profile
from memprof.profiler.views.advice import Finding, FindingKind
from memprof.profiler.views.report import summarize

pytestmark = pytest.mark.zero_kernels


class Block(nn.Module):
    def __init__(self, width: int, again: bool) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1 if again else 0.0)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.mlp, x, use_reentrant=False) if self.again else self.mlp(x))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(torch.nn.functional.gelu(self.up(x))))


def profiled(again: bool) -> Profile:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(64, again) for _ in range(3)])
    compiled = torch.compile(model, backend="memprof")
    with memprof.profile() as session:
        for _ in range(3):
            compiled(torch.ones(2048, 64)).sum().backward()
    return session.profile()


def findings(profile: Profile) -> list[Finding]:
    return [f for f in summarize(profile).advice if f.kind is FindingKind.RECOMPUTE]


def test_activations_worth_recomputing() -> None:
    # GIVEN three blocks that keep 2 MiB before and 2 MiB after a gelu
    profile = profiled(again=False)
    # THEN both are one finding, since the same module is to be wrapped for them
    (gelu,) = (f for f in findings(profile) if "call * through" in f.change)
    assert gelu.title == "add.Tensor, addmm, gelu in *: kept for the backward"
    one = 2048 * 256 * 4
    sizes = [e.nbytes for e in gelu.evidence]
    assert sizes[:6] == [one] * 6
    assert gelu.nbytes == sum(sizes)
    frame = gelu.evidence[0].frame
    assert frame is not None
    assert frame.file == __file__
    assert "gelu(self.up(x))" in frame.code
    assert "activation_memory_budget below 1.0" in gelu.change
    assert [g.random for g in profile.graphs] == [False, False]
    # WHEN they are checkpointed, with dropout, THEN that finding is gone, and no other comes
    assert findings(profiled(again=True)) == []

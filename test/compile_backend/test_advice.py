"""Advice on programs that really have the problem, and on the same ones mended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memprof
from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import Category, Profile
from memprof.profiler.views.advice import Finding, FindingKind, advise

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
    return [f for f in advise(profile) if f.kind is FindingKind.RECOMPUTE]


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


def train(late: bool, path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512))
    compiled = torch.compile(model, backend="memprof")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        loss = compiled(torch.ones(4, 512)).sum()
        if late:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not late:
            optimizer.zero_grad(set_to_none=True)

    with memprof.profile(path) as session:
        for _ in range(3):
            step()
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            record_shapes=True,
            profile_memory=True,
            with_stack=True,
        ) as run:
            for _ in range(5):
                step()
        session.add_dataflow(run, modules=model, optimizers=optimizer)


def test_gradients_held_through_the_forward(tmp_path: Path) -> None:
    # GIVEN a loop that releases gradients after the forward, and one that does it before
    train(True, tmp_path / "late.memprof")
    train(False, tmp_path / "early.memprof")
    late, early = read_profile(tmp_path / "late.memprof"), read_profile(tmp_path / "early.memprof")
    # THEN both files hold the data-flow profile, on the clock of the calls
    for profile in (late, early):
        assert profile.dataflow is not None
        (device,) = profile.dataflow.devices
        assert device.device == "cpu"
        assert device.bytes_at(device.peak or 0) > 4 * 1024 * 1024
        assert Category.GRADIENT in device.bytes
        assert profile.calls.start_ns[6] < device.time_ns[-1] <= profile.calls.end_ns[-1] + 10**9
        inside = [
            start
            for start in profile.calls.start_ns
            if device.time_ns[0] <= start <= device.time_ns[-1]
        ]
        assert len(inside) >= 9
    # AND the first is told so, the second is not
    found = [f for f in advise(late) if f.kind is FindingKind.GRADIENT]
    gradients = 4 * (512 * 1024 * 2 + 1024 + 512)
    assert [f.nbytes for f in found] == [gradients]
    assert not [f for f in advise(early) if f.kind is FindingKind.GRADIENT]

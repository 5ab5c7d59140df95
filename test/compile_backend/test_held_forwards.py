"""Forwards of compiled code whose backward never came: found where what they saved is held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import memprof
from memprof.cli import main
from memprof.profiler.live.growth import growth
from memprof.profiler.live.pairing import forwards_that_wait
from memprof.profiler.model import Growth, GrowthSource, Profile

ROWS, WIDTH = 64, 128
CALLS = 16


@pytest.fixture
def compiled() -> Any:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, WIDTH))
    yield torch.compile(model, backend="memprof")
    torch._dynamo.reset()


def batch() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH)


def found(profile: Profile) -> list[Growth]:
    return growth(profile)


def test_outputs_that_are_kept_hold_what_was_saved(compiled: Any, tmp_path: Path) -> None:
    kept = []
    path = tmp_path / "run.memprof"
    with memprof.profile(path):
        for i in range(CALLS):
            y = compiled(batch())
            if i % 2:
                kept.append(y)
            else:
                y.sum().backward()
    (grown,) = found(memprof.load(path).profile())
    assert grown.source is GrowthSource.COMPILED
    assert grown.device == "cpu"
    # The batch, and the sigmoid; not the weights, which all of them have.
    saved = 2 * ROWS * WIDTH * 4
    assert grown.nbytes == CALLS // 2 * saved
    assert grown.a_step == pytest.approx(saved / 2, rel=0.05)
    assert (grown.steps, grown.since) == (CALLS, 2)
    assert grown.step == "call of 0/0 forward"
    assert grown.holder.startswith("kept[...], local of test_outputs_that_are_kept")
    assert {p.nodes for p in grown.parts} >= {"sigmoid"}
    said = CliRunner().invoke(main, ["report", str(path), "--section", "leaks"]).output
    assert "forwards without a backward, whose saved memory is still held" in " ".join(said.split())
    # Let go of, nothing is found.
    kept.clear()
    del y
    assert found(memprof.current_profile()) == []


def test_forwards_without_a_backward_that_nobody_holds(compiled: Any) -> None:
    with memprof.profile() as session:
        for i in range(CALLS):
            y = compiled(batch())  # an evaluation that has forgotten torch.no_grad()
            if i % 4 == 3:
                y.sum().backward()
    profile = session.profile()
    (waiting,) = forwards_that_wait(profile).values()
    assert len(waiting) == CALLS * 3 // 4
    assert found(profile) == []


def test_forwards_of_the_last_step_alone(compiled: Any) -> None:
    # GIVEN a step of many calls of one forward, as of layers that share their code
    with memprof.profile() as session:
        for _ in range(2):
            outputs = [compiled(batch()) for _ in range(CALLS)]
            torch.stack(outputs).sum().backward()
        outputs = [compiled(batch()) for _ in range(CALLS // 2)]
    profile = session.profile()
    (waiting,) = forwards_that_wait(profile).values()
    assert len(waiting) == CALLS // 2
    assert found(profile) == []
    del outputs

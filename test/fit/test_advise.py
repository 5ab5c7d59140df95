"""``memprof advise`` with a device that is arithmetic, and what its changes change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from memprof.cli import main
from memprof.fit import tries
from memprof.simulate.changes import CHANGES, environment_of, repeated_blocks, settings_of
from memprof.simulate.command_line import Command
from memprof.simulate.parent import Settings, Simulation
from memprof.simulate.request import Failure, Outcome

from .programs import BUILD, account_of

GIB = 1 << 30

SAVES = {"checkpoint": 6, "fused-optimizer": 1, "optimizer-one-by-one": 2, "memory-budget": -1}


def attempt(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
    """A program of 20 GiB, of which each change saves so many."""
    nbytes = (20 - sum(SAVES.get(c, 0) for c in settings.changes)) * GIB
    account = account_of(nbytes)
    outcome = Outcome(accounts=[account], flops=1000)
    if settings.changes == ("expandable-segments",):
        outcome = Outcome(failure=Failure(kind="RuntimeError", message="no", trace=""))
    if "checkpoint" in settings.changes:
        outcome.changed = ["checkpoint: 12 Block"]
        outcome.flops = 1250
    if settings.changes == ("fused-optimizer",):
        outcome.idle = ["fused-optimizer"]
    return Simulation(settings.gpu, nbytes <= settings.gpu.memory, None, outcome)


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "simulate", attempt)
    monkeypatch.setattr(tries, "find_torch", lambda interpreter: type("T", (), BUILD))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")


def advise(*options: str) -> Result:
    return CliRunner().invoke(main, ["advise", *options, "--", "train.py"])


def test_each_change_alone_and_all_that_help_together() -> None:
    done = advise("--json", "--memory", "16GiB")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["before"]["fits"] is False
    results = {" ".join(r["changes"]): r for r in data["results"]}
    assert set(CHANGES) < set(results)
    assert results["checkpoint"]["saved"] == 6 * GIB
    assert results["checkpoint"]["recomputed"] == 0.25
    assert results["checkpoint"]["tried"]["fits"] is True
    assert results["memory-budget"]["saved"] == -GIB
    assert results["fused-optimizer"]["idle"] is True
    assert results["expandable-segments"]["problem"] == "RuntimeError: no"
    # Of the two ways of the optimizer the one that saves more.
    assert results["checkpoint optimizer-one-by-one"]["saved"] == 8 * GIB
    assert len(results) == len(CHANGES) + 1


def test_in_words() -> None:
    done = advise("-q")
    text = " ".join(done.stdout.split())
    assert "As it is it needs 20.0 GiB and fits" in text
    assert "checkpoint 14.0 GiB 6.00 GiB 25.0 % yes" in text
    assert "memory-budget 21.0 GiB does not help" in text
    assert "fused-optimizer: there was nothing to change" in text
    assert "expandable-segments: the program failed with it: RuntimeError: no" in text
    assert "checkpoint: 12 Block. To have it: torch.utils.checkpoint.checkpoint(" in text
    assert done.stderr == ""


def test_some_of_them() -> None:
    done = advise("--json", "--try", "checkpoint")
    assert [r["changes"] for r in json.loads(done.stdout)["results"]] == [["checkpoint"]]
    assert "'x' is none of" in advise("--try", "x").output


def test_options_of_the_allocator_join_those_that_are_there() -> None:
    keys = ("expandable-segments", "checkpoint")
    base = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}
    expected = "max_split_size_mb:64,expandable_segments:True"
    assert set(environment_of(keys, base).values()) == {expected}
    assert environment_of(("checkpoint",), base) == {}
    assert settings_of(("memory-budget",)) == (
        "torch._functorch.config.activation_memory_budget=0.5",
    )


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for head in self.heads:
            x = head(x)
        normed: torch.Tensor = self.norm(x)
        return normed


def test_blocks_are_the_largest_siblings_with_something_inside() -> None:
    net = torch.nn.Module()
    net.embeddings = torch.nn.ModuleList(torch.nn.Embedding(10_000, 4) for _ in range(2))
    net.encoder = torch.nn.ModuleList(Block() for _ in range(2))
    net.decoder = torch.nn.Sequential(*(Block() for _ in range(5)))
    assert repeated_blocks(net) == list(net.decoder)
    assert repeated_blocks(torch.nn.Linear(4, 4)) == []


CHANGED = """
from memprof.simulate.changes import Applied
applied = Applied(("checkpoint", "{optimizer}"))
applied.install()
import torch
blocks = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout()) for _ in range(3)]
model = torch.nn.Sequential(*blocks)
x = torch.ones(4, 8, requires_grad=True)
{before}
model(x).sum().backward()
optimizer = torch.optim.AdamW(model.parameters())
optimizer.step()
print(applied.sentences(), applied.idle(0))
print(optimizer.defaults["fused"], optimizer.defaults["foreach"])
torch.set_grad_enabled(False)
assert model(x).shape == x.shape
"""


@pytest.mark.parametrize("before", ["", "model.to('cpu')"])
@pytest.mark.parametrize(
    ("optimizer", "defaults", "said"),
    [
        ("fused-optimizer", "True None", "fused-optimizer: AdamW has fused=True"),
        ("optimizer-one-by-one", "None False", "optimizer-one-by-one: AdamW has foreach=False"),
    ],
)
def test_a_program_is_changed_from_outside(
    before: str, optimizer: str, defaults: str, said: str
) -> None:
    source = CHANGED.format(optimizer=optimizer, before=before)
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"['checkpoint: 3 Sequential', '{said}'] []", defaults]

"""``memprof fit --try`` with a device that is arithmetic, and what its changes change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from click.testing import Result
from outputs import checked, invoke
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._functorch.compilers import nop
from torch.utils.checkpoint import checkpoint

from memprof.what_if.fit import tries
from memprof.what_if.simulate.changes import (
    BUDGET_SETTING,
    CHANGES,
    WITHOUT_TIMING,
    change_of,
    environment_of,
    is_idle,
    settings_of,
)
from memprof.what_if.simulate.command_line import BadInput, Command
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.partitions import DRAWN_ANEW, count_partitions
from memprof.what_if.simulate.request import Failure, Outcome

from .programs import account_of

GIB = 1 << 30

SAVES = {"checkpoint": 6, "checkpoint=MLP": 3, "memory-budget": -1, f"{BUDGET_SETTING}=0.25": 2}
"""GiB that a change saves; others save nothing."""


def attempt(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
    """A program of 20 GiB."""
    nbytes = (20 - sum(SAVES.get(c, 0) for c in settings.changes)) * GIB
    account = account_of(nbytes)
    outcome = Outcome(accounts=[account], flops=1000)
    if settings.changes == ("expandable-segments",):
        outcome = Outcome(failure=Failure(kind="RuntimeError", message="no", trace=""))
    if "checkpoint" in settings.changes:
        outcome.changed = ["checkpoint: 12 Block"]
        outcome.flops = 1250
    if settings.changes == ("checkpoint=Nobody",):
        outcome.idle = ["checkpoint=Nobody"]
    return Simulation(settings.gpu, nbytes <= settings.gpu.memory, settings.job, outcome)


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "simulate", attempt)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")


def fit(*options: str, status: int = 0) -> Result:
    return invoke("fit", *options, "--", "train.py", status=status)


def test_each_change_alone_and_all_that_help_together() -> None:
    names = ",".join([*CHANGES, "checkpoint=MLP", f"{BUDGET_SETTING}=0.25"])
    done = fit("--json", "--memory", "16GiB", "--try", names)
    data = checked("fit-try", done.stdout)
    assert data["before"]["fits"] is False
    results = {" ".join(r["changes"]): r for r in data["results"]}
    assert results["checkpoint"]["saved"] == 6 * GIB
    assert results["checkpoint"]["saved_allocated"] == 6 * GIB
    assert results["checkpoint"]["recomputed"] == 0.25
    assert results["checkpoint"]["tried"]["fits"] is True
    assert results["memory-budget"]["saved"] == -GIB
    assert results["expandable-segments"]["problem"] == "RuntimeError: no"
    together = f"checkpoint checkpoint=MLP {BUDGET_SETTING}=0.25"
    assert results[together]["saved"] == 11 * GIB
    assert len(results) == len(CHANGES) + 3


def test_in_words() -> None:
    done = fit("-q", "--try")
    text = " ".join(done.stdout.split())
    assert "As it is it needs 20.0 GiB and fits" in text
    assert "checkpoint 14.0 GiB 6.00 GiB 25.0 % yes" in text
    assert "memory-budget 21.0 GiB does not help" in text
    assert "memory-budget: does not help" in text
    assert "expandable-segments: the program failed with it: RuntimeError: no" in text
    assert "checkpoint: 12 Block. To have it: torch.utils.checkpoint.checkpoint(" in text
    assert done.stderr == ""
    setting = f"{BUDGET_SETTING}=0.25"
    done = fit("--try", f"checkpoint=Nobody,{setting}")
    text = " ".join(done.stdout.split())
    assert "checkpoint=Nobody: there was nothing to change" in text
    assert f"{setting}. To have it: {BUDGET_SETTING} = 0.25" in text
    assert f"memprof fit: {setting}: needs 18.0 GiB" in done.stderr


def test_tries_are_of_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Settings, Mapping[str, str]]] = []

    def noted(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
        seen.append((settings, environment))
        return attempt(command, settings, environment)

    monkeypatch.setattr(tries, "simulate", noted)
    options = (
        *("--try", "checkpoint", "--world-size", "16", "--env", "SEQ=512"),
        *("--torch-config", "torch._inductor.config.shape_padding=False", "-q"),
    )
    done = fit(*options)
    assert [s.changes for s, _ in seen] == [(), ("checkpoint",)]
    timing = {f"{name}={value}" for name, value in WITHOUT_TIMING.items()}
    for settings, environment in seen:
        assert settings.job is not None
        assert settings.job.world_size == 16
        assert environment["SEQ"] == "512"
        config = {*timing, "torch._inductor.config.shape_padding=False"}
        assert set(settings.torch_config) == config
    assert "2 tries." in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--vary", "B=1..9"], "write a value into the command in place of {B}"),
        (["--gpu", "t4,a100-40gb"], "give one of t4, a100-40gb"),
    ],
)
def test_what_is_another_question_is_refused(options: list[str], said: str) -> None:
    done = fit("--try", *options, status=2)
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize("as_data", [False, True])
def test_ended_by_a_signal_it_prints_what_it_has(
    monkeypatch: pytest.MonkeyPatch, as_data: bool
) -> None:
    """As ``timeout`` ends it, in the fourth run."""
    runs = 0

    def ends(*arguments: Any) -> Simulation:
        nonlocal runs
        runs += 1
        if runs == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return attempt(*arguments)

    monkeypatch.setattr(tries, "simulate", ends)
    done = fit(
        "--try",
        "checkpoint,checkpoint=MLP,memory-budget",
        *["--json"] * as_data,
        status=128 + signal.SIGTERM,
    )
    assert "it ended early" in done.stderr
    if as_data:
        found = [r["changes"] for r in json.loads(done.stdout)["results"]]
        assert found == [["checkpoint"], ["checkpoint=MLP"]]
    else:
        assert "checkpoint 14.0 GiB" in " ".join(done.stdout.split())
        assert "memory-budget" not in done.stdout
    # Before anything is known there is nothing to print.
    runs = 3
    assert fit("--try", status=128 + signal.SIGTERM).stdout == ""


def test_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(command: Command, settings: Settings, environment: Any) -> Simulation:
        found = attempt(command, settings, environment)
        if "checkpoint" in settings.changes or not helps:
            found.outcome.undecided = "it was ended after 5 s (--timeout)"
        return found

    monkeypatch.setattr(tries, "simulate", undecided)
    helps = True
    text = " ".join(fit("-q", "--try").stdout.split())
    assert "checkpoint: the program failed with it: it was ended after 5 s" in text
    assert "checkpoint 14.0 GiB" not in text
    helps = False
    done = fit("-q", "--try", status=4)
    assert done.stdout == ""
    assert done.stderr.startswith("memprof fit: undecided: it was ended after 5 s")


def test_a_change_that_makes_gradients_wrong_is_none_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def saves(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
        outcome = Outcome(accounts=[account_of((20 - len(settings.changes)) * GIB)])
        outcome.notes = [DRAWN_ANEW] if "memory-budget" in settings.changes else []
        return Simulation(settings.gpu, True, None, outcome)

    monkeypatch.setattr(tries, "simulate", saves)
    done = fit("-q", "--try", "memory-budget,checkpoint,checkpoint=MLP")
    text = " ".join(done.stdout.split())
    assert "memory-budget: not to be used: gradients are wrong" in text
    # THEN the two others alone are all that help
    assert "all that help 18.0 GiB 2.00 GiB yes checkpoint + checkpoint=MLP" in text


@pytest.mark.parametrize(
    ("budget", "again", "right"), [(1.0, False, True), (0.0, False, False), (1.0, True, True)]
)
def test_random_numbers_that_a_backward_draws_anew(
    monkeypatch: pytest.MonkeyPatch, budget: float, again: bool, right: bool
) -> None:
    # GIVEN a function with dropout, partitioned as Inductor does
    name = "min_cut_rematerialization_partition"
    monkeypatch.setattr(partitioners, name, getattr(partitioners, name))
    counts = count_partitions()

    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.5)

    partition = partitioners.min_cut_rematerialization_partition

    @torch.compile(backend=aot_autograd(fw_compiler=nop, partition_fn=partition))
    def run(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(dropped, x, use_reentrant=False) if again else dropped(x)

    x = torch.ones(256, requires_grad=True)
    with functorch_config.patch(activation_memory_budget=budget, enable_autograd_cache=False):
        y = run(x)
        y.sum().backward()
    # THEN its gradient is 0 where it dropped, as in eager code, or that is said not to be so
    assert x.grad is not None
    assert torch.equal(x.grad != 0, y != 0) is right
    assert (counts["drawn_anew"] == 0) is right


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "'x' is nothing to try: give expandable-segments"),
        ("memory-budget=0.5", "nothing to try"),
        ("checkpoint=", "checkpoint=CLASS"),
        ("checkpoint=blocks.*.mlp", "name of a class of modules"),
        ("torch.x=3", "is no setting of torch"),
    ],
)
def test_bad_changes(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        change_of(text)
    done = fit("--try", text, status=2)
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("text", "changed", "partitions", "idle"),
    [
        ("checkpoint", (), 1, True),
        ("checkpoint=MLP", ("checkpoint=MLP",), 1, False),
        ("expandable-segments", (), 0, False),
        ("memory-budget", (), 0, True),
        ("memory-budget", (), 1, False),
        ("torch._functorch.config.debug_partitioner=True", (), 0, False),
        ("torch.nobody.config.imports=True", (), 1, True),
    ],
)
def test_what_had_nothing_to_change(
    text: str,
    changed: tuple[str, ...],
    partitions: int,
    idle: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment_of(("expandable-segments",), {}).items():
        monkeypatch.setenv(name, value)
    assert is_idle(text, changed, partitions) is idle
    # As many programs do in their first lines.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:32")
    assert is_idle(text, changed, partitions) is (idle or text == "expandable-segments")


def test_options_of_the_allocator_join_those_that_are_there() -> None:
    keys = ("expandable-segments", "checkpoint")
    base = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}
    expected = "max_split_size_mb:64,expandable_segments:True"
    assert set(environment_of(keys, base).values()) == {expected}
    assert environment_of(("checkpoint",), base) == {}
    assert settings_of(("memory-budget",)) == (
        "torch._functorch.config.activation_memory_budget=0.5",
    )


MODELS = """
import sys
from memprof.what_if.simulate.checkpointed import Checkpointed
said = []
Checkpointed({"checkpoint": ""}, lambda change, words: said.append(words)).install()
assert "torch" not in sys.modules
import torch
def model(count):
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(count)
    ))
def optimizer(model):
    return torch.optim.SGD(model.parameters())
teacher, student, part = model(2).to("cpu").requires_grad_(False), model(3), model(1).to("cpu")
optimizer(student)
print(said)
part = torch.nn.Sequential(model(4).to("cpu"), torch.nn.Linear(8, 8))
whole = torch.nn.Sequential(*(torch.nn.Sequential(part) for _ in range(2)))
optimizer(whole)
print(said[2:], sum(hasattr(m.forward, "args") for m in whole.modules()))
"""


def run(source: str) -> list[str]:
    """Lines that a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_blocks_of_each_model_are_recomputed_and_of_a_part_those_of_the_whole() -> None:
    counts = ["2 Sequential", "5 Sequential"]
    assert run(MODELS) == [str(counts), "['9 Sequential', '7 Sequential'] 2"]


NAMED = """
import copy
from memprof.what_if.simulate.checkpointed import Checkpointed
said = []
Checkpointed({classes}, lambda change, words: said.append(words)).install()
import torch

class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.down(self.up(x).sin())

class Sharded(MLP):  # as FSDP2 makes a class of a module's
    pass

model = torch.nn.Sequential(MLP(), torch.nn.Sequential(MLP(), torch.nn.Tanh()), Sharded())
{see}
model(torch.ones(4, 8)).sum().backward()
print(sorted(said), [m.calls for m in model.modules() if isinstance(m, MLP)])
with torch.no_grad():
    copy.deepcopy(model)(torch.ones(4, 8))
print([m.calls for m in model.modules() if isinstance(m, MLP)])
"""


@pytest.mark.parametrize(
    ("names", "see", "said", "calls"),
    [
        (
            ["Sharded", "MLP"],
            "torch.optim.SGD(model.parameters())",
            ["1 Sharded", "2 MLP"],
            [2, 2, 2],
        ),
        (["Sharded"], "model.to('cpu')", ["1 Sharded"], [1, 1, 2]),
    ],
)
def test_modules_of_a_class_are_recomputed(
    names: list[str], see: str, said: list[str], calls: list[int]
) -> None:
    first, second = run(NAMED.format(classes={name: name for name in names}, see=see))
    assert first == f"{said} {calls}"
    assert second == str(calls)  # a copy runs itself

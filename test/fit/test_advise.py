"""``memprof advise`` with a device that is arithmetic, and what its changes change."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from click.testing import CliRunner, Result
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._functorch.compilers import nop
from torch.utils.checkpoint import checkpoint

from memprof.cli import main
from memprof.fit import tries
from memprof.fit.tries import expected
from memprof.profiler.advice import Finding, FindingKind
from memprof.profiler.file import write_profile
from memprof.profiler.model import (
    AccountRow,
    DeviceAccount,
    Profile,
    Purpose,
    TrackerRecord,
)
from memprof.simulate.applied import DRAWN_ANEW, PartitionFlops, repeated_blocks
from memprof.simulate.changes import (
    GENERAL,
    change_of,
    environment_again,
    environment_of,
    settings_of,
)
from memprof.simulate.command_line import BadInput, Command
from memprof.simulate.parent import Settings, Simulation
from memprof.simulate.request import Failure, Outcome

from .programs import BUILD, account_of

GIB = 1 << 30

advise_module = importlib.import_module("memprof.commands.fit")
"""The module, which its function hides."""

SAVES = {"checkpoint": 6, "fused-optimizer": 1, "optimizer-one-by-one": 2, "memory-budget": -1}
GELU = "recompute=aten.gelu.default@model.py:55"


def attempt(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
    """A program of 20 GiB, of which each change saves so many."""
    nbytes = (20 - sum({**SAVES, GELU: 3}.get(c, 0) for c in settings.changes)) * GIB
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
    # A width of its own: other tests' libraries leave theirs in the environment.
    arguments = ["advise", *options, "--", "train.py"]
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "100"})


def test_each_change_alone_and_all_that_help_together() -> None:
    done = advise("--json", "--memory", "16GiB")
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["before"]["fits"] is False
    results = {" ".join(r["changes"]): r for r in data["results"]}
    assert set(GENERAL) < set(results)
    assert results["checkpoint"]["saved"] == 6 * GIB
    assert results["checkpoint"]["recomputed"] == 0.25
    assert results["checkpoint"]["tried"]["fits"] is True
    assert results["memory-budget"]["saved"] == -GIB
    assert results["fused-optimizer"]["idle"] is True
    assert results["expandable-segments"]["problem"] == "RuntimeError: no"
    # Of the two ways of the optimizer the one that saves more.
    assert results["checkpoint optimizer-one-by-one"]["saved"] == 8 * GIB
    assert len(results) == len(GENERAL) + 1


def test_in_words() -> None:
    done = advise("-q")
    text = " ".join(done.stdout.split())
    assert "As it is it needs 20.0 GiB and fits" in text
    # The program's account has activations of no module: of blocks nothing is expected.
    assert "checkpoint 14.0 GiB 0 B 6.00 GiB 25.0 % yes" in text
    assert "memory-budget 21.0 GiB does not help" in text
    assert "memory-budget: does not help" in text
    assert "fused-optimizer: there was nothing to change" in text
    assert "expandable-segments: the program failed with it: RuntimeError: no" in text
    assert "checkpoint: 12 Block. To have it: torch.utils.checkpoint.checkpoint(" in text
    assert done.stderr == ""


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
    done = advise("--try", "checkpoint,optimizer-one-by-one,memory-budget", *["--json"] * as_data)
    assert done.exit_code == 128 + signal.SIGTERM
    assert "it ended early" in done.stderr
    if as_data:
        found = [r["changes"] for r in json.loads(done.stdout)["results"]]
        assert found == [["checkpoint"], ["optimizer-one-by-one"]]
    else:
        assert "checkpoint 14.0 GiB" in " ".join(done.stdout.split())
        assert "memory-budget" not in done.stdout
    # Before anything is known there is nothing to print.
    runs = 3
    done = advise()
    assert (done.exit_code, done.stdout) == (128 + signal.SIGTERM, "")


def test_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(command: Command, settings: Settings, environment: Any) -> Simulation:
        found = attempt(command, settings, environment)
        if "checkpoint" in settings.changes or not helps:
            found.outcome.undecided = "it was ended after 5 s (--timeout)"
        return found

    monkeypatch.setattr(tries, "simulate", undecided)
    helps = True
    text = " ".join(advise("-q").stdout.split())
    assert "checkpoint: the program failed with it: it was ended after 5 s" in text
    assert "checkpoint 14.0 GiB" not in text
    helps = False
    done = advise("-q")
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.startswith("memprof advise: undecided: it was ended after 5 s")


def test_a_change_that_makes_gradients_wrong_is_none_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def saves(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
        outcome = Outcome(accounts=[account_of((20 - len(settings.changes)) * GIB)])
        outcome.notes = [DRAWN_ANEW] if "memory-budget" in settings.changes else []
        return Simulation(settings.gpu, True, None, outcome)

    monkeypatch.setattr(tries, "simulate", saves)
    done = advise("-q", "--try", "memory-budget,checkpoint,drop-gradients")
    text = " ".join(done.stdout.split())
    assert "memory-budget: not to be used: gradients are wrong" in text
    # THEN the two others alone are all that help
    assert "all that help 18.0 GiB 2.00 GiB yes checkpoint + drop-gradients" in text


@pytest.mark.parametrize(
    ("budget", "again", "right"), [(1.0, False, True), (0.0, False, False), (1.0, True, True)]
)
def test_random_numbers_that_a_backward_draws_anew(
    monkeypatch: pytest.MonkeyPatch, budget: float, again: bool, right: bool
) -> None:
    # GIVEN a function with dropout, partitioned as Inductor does
    name = "min_cut_rematerialization_partition"
    monkeypatch.setattr(partitioners, name, getattr(partitioners, name))
    flops = PartitionFlops()
    flops._wrap(partitioners)

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
    assert (flops.drawn_anew == 0) is right


def test_some_of_them() -> None:
    done = advise("--json", "--try", "checkpoint")
    assert [r["changes"] for r in json.loads(done.stdout)["results"]] == [["checkpoint"]]
    assert "'x' is none of" in advise("--try", "x").output


def finding(kind: FindingKind, nbytes: int, remedy: str) -> Finding:
    return Finding(kind, f"{kind.value} of it", nbytes, "at the peak", "do it", (), remedy)


def test_findings_of_a_profile_stand_beside_what_they_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a profile whose report finds three things, of which memprof can apply two
    write_profile(Profile(), tmp_path / "run.memprof")
    found = [
        finding(FindingKind.RECOMPUTE, 4 * GIB, GELU),
        finding(FindingKind.GRADIENT, GIB, "expandable-segments"),
        finding(FindingKind.SHAPES, GIB, ""),
    ]
    monkeypatch.setattr(advise_module, "find", lambda profile: found)
    command = ["advise", "-q", "run.memprof", "--json", "--try", "--", "train.py"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    gelu, segments = data["results"]
    assert gelu["changes"] == [GELU]
    assert (gelu["finding"], gelu["estimate"]) == ("recompute of it", 4 * GIB)
    assert (gelu["saved"], gelu["saved_allocated"]) == (3 * GIB, 3 * GIB)
    assert segments["problem"] == "RuntimeError: no"
    assert [r["at_most"] for r in (gelu, segments)] == [False, True]
    assert [f["kind"] for f in data["untried"]] == ["shapes"]

    # AND in words, with a change more than the report has
    done = CliRunner().invoke(
        main, ["advise", "-q", "run.memprof", "--try", "checkpoint", "--", "train.py"]
    )
    text = " ".join(done.stdout.split())
    assert "17.0 GiB 4.00 GiB 3.00 GiB" in text
    assert "(finding: recompute of it)" in text
    assert "not tried, since it is the program's own text that has to change: shapes of it" in text
    assert "all that help 11.0 GiB" in text


def test_what_can_only_be_bounded_is_said_to_be_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(Profile(), tmp_path / "run.memprof")
    found = [finding(FindingKind.GRADIENT, 7 * GIB, "checkpoint")]
    monkeypatch.setattr(advise_module, "find", lambda profile: found)
    done = CliRunner().invoke(main, ["advise", "-q", "run.memprof", "--try", "--", "train.py"])
    assert "14.0 GiB at most 7.00 GiB 6.00 GiB" in " ".join(done.stdout.split())


def test_the_command_may_be_what_the_tracker_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        advise_module, "find", lambda p: [finding(FindingKind.RECOMPUTE, GIB, GELU)]
    )
    write_profile(Profile(), tmp_path / "run.memprof")
    done = CliRunner().invoke(main, ["advise", "run.memprof", "--try"])
    assert done.exit_code == 2
    assert "run.memprof has no command" in done.output
    record = TrackerRecord()
    record = replace(record, metadata=replace(record.metadata, command=("train.py", "--fast")))
    write_profile(Profile().with_tracker(record), tmp_path / "run.memprof")
    done = CliRunner().invoke(main, ["advise", "-q", "--json", "run.memprof", "--try"])
    assert done.exit_code == 0, done.output
    assert [r["changes"] for r in json.loads(done.stdout)["results"]] == [[GELU]]


def test_a_report_without_remedies_is_no_success(tmp_path: Path) -> None:
    write_profile(Profile(), tmp_path / "run.memprof")
    done = CliRunner().invoke(main, ["advise", "run.memprof", "--try", "--", "train.py"])
    assert done.exit_code == 2
    assert "its report finds nothing that memprof could try" in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recompute", "recompute of what?"),
        ("bf16-state=x", "write bf16-state"),
        ("x", "none of"),
        ("static-inputs", "Write static-inputs=NAME"),
        ("option=graphs", "write option=NAME:VALUE"),
        ("option", "option of what?"),
    ],
)
def test_bad_changes(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        change_of(text)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("graph:False", "NAME one of observe_runs"),
        ("graphs:5", "option 'graphs' must be"),
        ("outputs:keep", "it must be 'error' or 'clone'"),
    ],
)
def test_a_bad_option_is_refused_before_anything_runs(option: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        change_of(f"option={option}")
    done = advise("--try", f"option={option}")
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_what_the_account_expects() -> None:
    rows = [
        AccountRow(Purpose.ACTIVATION, 90, 3, "Model > Net > Block > MLP"),
        AccountRow(Purpose.ACTIVATION, 30, 3, "Model > Net > Block"),
        # What holds the blocks has lines that made two blocks of memory, and is there once.
        AccountRow(Purpose.ACTIVATION, 10, 1, "Model > Net"),
        AccountRow(Purpose.ACTIVATION, 10, 2, "Model > Net > Embedding"),
        AccountRow(Purpose.OPTIMIZER_STATE, 80, 2),
        AccountRow(Purpose.TEMPORARY, 7, 1),
    ]
    account = DeviceAccount("cuda:0", reserved=250, most_allocated=207, phase="backward", rows=rows)
    assert expected(account) == {
        "expandable-segments": 43,
        "fused-optimizer": 0,
        "optimizer-one-by-one": 0,
        "bf16-state": 40,
        "checkpoint": 120,
    }
    account.phase = "optimizer"
    assert expected(account)["fused-optimizer"] == 7
    assert expected(account)["checkpoint"] == 0


def test_options_of_the_allocator_join_those_that_are_there() -> None:
    keys = ("expandable-segments", "checkpoint")
    base = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}
    expected = "max_split_size_mb:64,expandable_segments:True"
    assert set(environment_of(keys, base).values()) == {expected}
    assert environment_of(("checkpoint",), base) == {}
    # The program sets one of them itself, as many do in their first lines.
    given = {**base, **environment_of(keys, base)}
    assert environment_again(keys, given, given) == ("", {})
    for name in given:
        now = {**given, name: "max_split_size_mb:32"}
        found, again = environment_again(keys, given, now)
        assert found == name
        assert set(again.values()) == {"max_split_size_mb:32,expandable_segments:True"}
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


MODELS = """
import torch
from memprof.simulate.applied import Checkpointed
said = []
Checkpointed("", said.append).install(torch.nn.modules.module)
def model(count):
    return torch.nn.Sequential(*(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(count)
    ))
teacher, student, part = model(2).to("cpu").requires_grad_(False), model(3), model(1).to("cpu")
x = torch.ones(4, 8)
(teacher(x) - student(x)).sum().backward()
print(said)
part = torch.nn.Sequential(model(4).to("cpu"), torch.nn.Linear(8, 8))
whole = torch.nn.Sequential(*(torch.nn.Sequential(part) for _ in range(2)))
whole(x).sum().backward()
print(said[2:], sum(hasattr(m.forward, "recomputes") for m in whole.modules()))
"""


def test_the_blocks_of_each_model_are_recomputed_and_of_a_part_those_of_the_whole() -> None:
    done = subprocess.run([sys.executable, "-c", MODELS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = ["2 Sequential", "5 Sequential"]
    assert done.stdout.splitlines() == [str(counts), "['9 Sequential', '7 Sequential'] 2"]


CHANGED = """
from memprof.simulate.applied import Applied
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


COMPILED = """
import sys
from memprof.simulate.applied import Applied
applied = Applied(
    (
        "static-inputs=L['cache']",
        "static-inputs=L['nobody']",
        "option=observe_runs:0",
        "option=max_programs:64",
    )
)
applied.install()
assert "torch" not in sys.modules
import torch

def seen(graph, inputs):
    for node in graph.graph.find_nodes(op="placeholder"):
        print(node.name, node.meta["tensor_dict"].get("_dynamo_static_input_type"))
    return graph

def update(cache, x):
    cache.add_(x)
    return cache.sum()

cache, x = torch.zeros(4), torch.ones(4)
torch.compile(update, backend=seen)(cache, x)
options = {"observe_runs": 5, "graphs": False}
torch.compile(lambda x: x + 1, backend="memprof", options=options)(x)
from memprof.compile_backend.runtime import RUNTIME
print(RUNTIME.options)
print(applied.sentences())
print(applied.idle(0))
"""


def test_inputs_and_options_of_compiled_code_are_changed_from_outside() -> None:
    command = [sys.executable, "-c", COMPILED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "l_cache_ unguarded",
        "l_x_ None",
        "{'observe_runs': '0', 'graphs': 'False'}",
        str(
            [
                "static-inputs=L['cache']: inputs of compiled graphs: 1",
                "option=observe_runs:0: graphs compiled with it: 1",
            ]
        ),
        str(["static-inputs=L['nobody']", "option=max_programs:64"]),
    ]

"""``memprof fit`` with a device that is arithmetic: rows, the file, what is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from outputs import checked, invoke
from profile_builder import step_time

from memprof.profiler.model import (
    AllocationFailure,
    SourceFrame,
    WhyNot,
)
from memprof.what_if.fit import tries
from memprof.what_if.simulate.command_line import Command
from memprof.what_if.simulate.engine_memory import Serving
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.request import Failure as ScriptFailure, Outcome

from .programs import account_of

GIB = 1 << 30


class Device:
    """Takes ``base + batch * each`` bytes; ``runs`` has the command and environment of each run."""

    def __init__(self) -> None:
        self.base, self.each = 4 * GIB, GIB
        self.runs: list[tuple[Command, Mapping[str, str], Settings]] = []
        self.failure: ScriptFailure | None = None
        self.undecided = ""
        self.step_ns = 0
        self.interrupt_at = 0
        self.lost: BaseException = KeyboardInterrupt()
        self.catches = False
        self.tokens: Callable[[float], int] | None = None

    def attempt(
        self, command: Command, settings: Settings, environment: Mapping[str, str]
    ) -> Simulation:
        self.runs.append((command, environment, settings))
        if len(self.runs) == self.interrupt_at:
            raise self.lost
        batch: float = next((int(w) for w in command.program if w.isdecimal()), 1)
        nbytes = int(self.base + batch * self.each)
        account = account_of(nbytes)
        fits = nbytes <= settings.gpu.memory
        failure = self.failure
        outcome = Outcome(accounts=[account], failure=failure, flops=1000 - int(batch))
        outcome.undecided = self.undecided
        if self.step_ns:
            outcome.time = step_time(self.step_ns)
        if self.tokens is not None:
            outcome.serving = Serving(engine="engine", tokens=self.tokens(batch))
        if not fits and failure is None:
            account.failure = AllocationFailure(
                requested=self.each,
                wanted=self.each,
                frame=SourceFrame("train.py", 7, "step"),
                why=WhyNot.TOO_LARGE,
            )
            outcome.out_of_memory = account
            outcome.failure = ScriptFailure(
                kind="OutOfMemoryError", message="full", trace="", out_of_memory=True
            )
            if self.catches:  # and goes on with half of it
                outcome.failure, fits = None, True
                account.reserved //= 2
        return Simulation(settings.gpu, True if fits else None, settings.job, outcome)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(tries, "attempt", found.attempt)
    monkeypatch.setattr(tries, "simulate", found.attempt)
    return found


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    return "train.py"


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = checked("fit", result.stdout)["rows"]
    return found


def test_the_largest_batch_on_two_gpus(device: Device, script: str) -> None:
    done = invoke(
        "fit", "--gpu", "h100-80gb,a100-40gb", "--vary", "B=1..256", "--json", "--", script, "{B}"
    )
    large, small = rows(done)
    for row in (large, small):
        room = (row["gpu"]["memory"] - device.base) // device.each
        assert row["best"]["values"] == {"B": str(room)}
        assert row["failed"]["values"] == {"B": str(room + 1)}
        assert row["failed"]["limit"] == "1.00 GiB at train.py:7"
    assert len(large["tries"]) == 4
    assert len(small["tries"]) == 2  # from what the other device has shown
    assert "memprof fit: B=1 on h100-80gb: fits, needs 5.00 GiB" in done.stderr


def test_lists_are_rows_and_stand_anywhere(device: Device, script: str) -> None:
    done = invoke(
        "fit",
        *("--vary", "B=1..64:1", "--vary", "E=True,False", "--vary", "N=8,16"),
        *("--env", "PYTORCH_ALLOC_CONF=expandable_segments:{E}", "--world-size", "{N}"),
        *("--json", "--", "python", script, "{B}"),
    )
    assert [row["values"] for row in rows(done)] == [
        {"E": e, "N": n} for e in ("True", "False") for n in ("8", "16")
    ]
    seen = {
        (env["PYTORCH_ALLOC_CONF"].partition(":")[2], settings.job.world_size)
        for _, env, settings in device.runs
        if settings.job is not None
    }
    assert seen == {(e, n) for e in ("True", "False") for n in (8, 16)}


def test_without_a_range_it_is_which_gpu(device: Device, script: str) -> None:
    done = invoke("fit", "--gpu", "t4,a100-40gb,h200", "--", script, "20", status=1)
    assert "2 of 3 fit" in done.stdout
    assert "smallest GPU: NVIDIA A100-SXM4-40GB" in done.stdout


def test_tokens_that_grow_with_the_value(device: Device, script: str) -> None:
    device.tokens = lambda value: int(value) * 1000
    options = ("--gpu", "t4,a100-40gb", "--vary", "B=1..64", "--at-least-tokens", "20000")
    done = invoke("fit", *options, "--json", "--", script, "{B}", status=1)
    small, large = rows(done)
    room = (large["gpu"]["memory"] - device.base) // device.each
    assert large["best"]["values"] == {"B": str(room)}
    assert large["best"]["tokens"] == room * 1000
    # The largest that fits the other one holds too few, and so does each smaller one.
    assert small["best"] is None
    assert small["failed"]["tokens"] < 20000
    assert small["failed"]["fits"]
    text = invoke("fit", *options, "--", script, "{B}", status=1).stdout
    assert f"holds {small['failed']['tokens']:,} tokens" in text
    assert f"{room * 1000:,}" in text


def test_tokens_that_fall_with_the_value(device: Device, script: str) -> None:
    device.tokens = lambda value: 40000 - int(value) * 1000
    options = ("--gpu", "a100-40gb", "--vary", "B=1..64", "--at-least-tokens", "20000")
    done = invoke("fit", *options, "--json", "--", script, "{B}")
    (row,) = rows(done)
    assert row["best"]["values"] == {"B": "20"}
    assert row["failed"]["values"] == {"B": "21"}


def test_tokens_of_a_script_that_serves_nothing(device: Device, script: str) -> None:
    done = invoke(
        "fit", "--vary", "B=1..64", "--at-least-tokens", "20000", "--", script, "{B}", status=3
    )
    assert "no serving engine" in done.output


def test_devices_are_varied_for_ranks_that_a_program_starts_itself(
    device: Device, script: str
) -> None:
    options = ("--vary", "N=1,2,4", "--devices", "{N}", "--json")
    invoke("fit", *options, "--", script, "1", "--tp", "{N}")
    assert [settings.devices for _, _, settings in device.runs] == [1, 2, 4]


def test_what_a_million_costs(device: Device, script: str) -> None:
    device.step_ns = 500_000_000
    options = ("--gpu", "h100-80gb", "--vary", "B=1..64", "--price", "h100-80gb=3.6")
    done = invoke("fit", *options, "--", script, "{B}")
    # THEN 64 in half a second, for a tenth of a cent a second
    assert "$ per million B" in done.stdout
    assert f"{0.001 / 128 * 1e6:.2f}" in done.stdout


def test_an_executor_runs_the_tries(device: Device, script: str) -> None:
    options = ("--gpu", "h100-80gb,a100-40gb", "--vary", "B=1..256", "--json")
    alone = rows(invoke("fit", *options, "--", script, "{B}"))
    executor = "--executor=concurrent.futures:ThreadPoolExecutor"
    found = rows(invoke("fit", *options, executor, "--", script, "{B}"))
    assert [row["best"]["values"] for row in found] == [row["best"]["values"] for row in alone]
    # WHEN a worker is lost
    device.interrupt_at = len(device.runs) + 1
    device.lost = RuntimeError("a worker is gone")
    done = invoke("fit", *options, executor, "--", script, "{B}", status=3)
    assert "the executor failed: RuntimeError('a worker is gone')" in done.stderr


def test_an_interrupted_search_says_so(device: Device, script: str) -> None:
    device.interrupt_at = 3
    done = invoke("fit", "--vary", "B=1..256", "--json", "--", script, "{B}", status=130)
    assert "memprof fit: interrupted" in done.stderr


def test_a_script_that_fails_is_no_answer(device: Device, script: str) -> None:
    device.failure = ScriptFailure(kind="ValueError", message="no data\nmore", trace="Trace:\n x")
    done = invoke("fit", "--vary", "B=1..9", "--", script, "{B}", status=3)
    assert done.stderr.splitlines()[-1] == "memprof fit: the script failed: ValueError: no data"
    assert "Trace:" in done.stderr


def test_what_is_undecided_is_no_answer(device: Device, script: str) -> None:
    device.undecided = "the script ended: one optimizer step was seen"
    done = invoke("fit", "--vary", "B=1..9", "--", script, "{B}", status=4)
    assert done.stderr.splitlines() == [
        "memprof fit: undecided: B=1, the script ended: one optimizer step was seen"
    ]
    assert not done.stdout


@pytest.mark.parametrize(
    ("options", "why", "status"),
    [
        (["--vary", "B=1..9", "--", "train.py"], "B stands nowhere", 2),
        (["--vary", "B=1..9", "--vary", "C=1..9", "--", "train.py", "{B}{C}"], "are ranges", 2),
        (["--vary", "B", "--", "train.py"], "is no variable", 2),
        (["--vary", "B=1..9"], "there is no script", 2),
        (["--gpu", "h100-80gb"], "there is no script", 2),
        (["--gpu", "abacus", "--", "train.py"], "abacus", 2),
        (["--env", "X", "--", "train.py"], "is no NAME=VALUE", 2),
        (["--price", "h100-80gb=2,5", "--", "train.py"], "is no NAME=VALUE", 2),
        (["--price", "h100-80gb=nan", "--", "train.py"], "more than 0", 2),
        (["--price", "a100-40gb=2", "--vary", "B=1..9", "--", "train.py", "{B}"], "of --gpu", 2),
        (["--executor", "math:pi", "--", "train.py"], "nothing that can be called", 2),
        (["--price", "h100-80gb=cheap", "--", "train.py"], "an amount is a number", 2),
        (["--torch-config", "x=1", "--", "train.py"], "is no setting of torch", 2),
        (["--world-size", "x", "--", "train.py"], "--world-size x is no number", 3),
        (["--devices", "x", "--", "train.py"], "--devices x is no number", 3),
        (["--try", "checkpoint", "--at-least-tokens", "9", "--", "train.py"], "is for --vary", 2),
    ],
)
def test_bad_options(
    device: Device, script: str, options: list[str], why: str, status: int
) -> None:
    assert why in invoke("fit", *options, status=status).output
    assert not device.runs


def test_a_script_that_goes_on_with_less_does_not_fit(device: Device, script: str) -> None:
    device.catches = True
    done = invoke("fit", "--gpu", "a100-40gb", "--vary", "B=1..256", "--json", "--", script, "{B}")
    (row,) = rows(done)
    room = (row["gpu"]["memory"] - device.base) // device.each
    assert row["best"]["values"] == {"B": str(room)}
    assert row["failed"]["limit"] == "1.00 GiB at train.py:7; the script went on"

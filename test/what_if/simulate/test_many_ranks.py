"""Ranks of a job that are simulated at once: the same figures as alone, one table, one verdict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from profile_builder import step_time

from memprof.profiler.model import Category, DeviceAccount, Held
from memprof.profiler.support import host
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.simulate import many_ranks
from memprof.what_if.simulate.command_line import Command, jobs_of
from memprof.what_if.simulate.failures import Failure
from memprof.what_if.simulate.many_ranks import simulate_ranks
from memprof.what_if.simulate.messages import Announced
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.request import Outcome
from memprof.what_if.simulate.result import render, result_of

from .test_simulate import simulate

GIB = 1 << 30
GPU = find_gpu("rtx-4090")
SCRIPT = Command("python", (), ("t.py",))

LAYERS = (1, 4, 2, 3)
"""Matrices of each stage of a pipeline."""

STAGES = f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
layers = [nn.Linear(1024, 1024, bias=False, device=device) for _ in range({LAYERS}[rank])]
example = torch.empty(2, 1024, device="meta", requires_grad=True)
stage = PipelineStage(
    nn.Sequential(*layers), rank, world, device, input_args=(example,), output_args=(example,)
)
schedule = Schedule1F1B(stage, 2 * world, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.Adam(stage.submod.parameters(), fused=True)
data = torch.ones(4 * world, 1024, device=device)
while True:
    if rank == 0:
        schedule.step(data)
    elif rank == world - 1:
        schedule.step(target=data)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.simgpu
def test_uneven_stages_take_what_they_take_alone(tmp_path: Path) -> None:
    # GIVEN four stages of a pipeline, each simulated alone
    job = ("--world-size=4", "--gpu=h100-80gb")
    alone = [simulate(tmp_path, STAGES, *job, f"--ranks={rank}")[0] for rank in range(4)]
    state = [
        sum(row["nbytes"] for row in result["ranks"][0]["accounts"][0]["rows"]) for result in alone
    ]
    assert sorted(range(4), key=lambda rank: state[rank]) == [0, 2, 3, 1]
    for executor in ((), ("--executor=concurrent.futures:ProcessPoolExecutor",)):
        # WHEN all are simulated at once, by threads of this process or whatever else
        result, _ = simulate(tmp_path, STAGES, *job, "--ranks=all", *executor)
        # THEN each has the figures that it has alone, and the fullest decides
        assert [rank["rank"] for rank in result["ranks"]] == [0, 1, 2, 3]
        for rank, before in zip(result["ranks"], alone, strict=True):
            for figure in ("needed_bytes", "reserved_bytes", "allocated_bytes", "fits", "steps"):
                assert rank[figure] == before["ranks"][0][figure]
        assert result["needed_bytes"] == max(before["needed_bytes"] for before in alone)


@pytest.mark.simgpu
def test_a_rank_that_fails_is_said(tmp_path: Path) -> None:
    source = """
import os, torch
rank = int(os.environ["RANK"])
assert rank != 2, "no expert is left"
torch.ones((4 << 30) + (rank << 36), device="cuda", dtype=torch.uint8)
"""
    options = ("--world-size=3", "--ranks=all", "--gpu=rtx-4090")
    # WHEN one rank of three fails, and another does not fit THEN the job does not
    result, _ = simulate(tmp_path, source, *options, status=1)
    assert result["fits"] is False
    assert [rank["fits"] for rank in result["ranks"]] == [True, False, None]
    assert result["ranks"][2]["failure"]["message"] == "no expert is left"
    # WHEN all others fit THEN it cannot be said
    result, errors = simulate(tmp_path, source, *options, "--memory=100GiB", status=3)
    assert result["fits"] is None
    assert "the script failed: AssertionError: no expert is left" in errors


def outcome(activation: int, **more: Any) -> Outcome:
    account = DeviceAccount(
        "cuda:0",
        reserved=activation + 3 * GIB,
        most_allocated=activation + 2 * GIB,
        steps=3,
        rows=[
            Held(Category.PARAMETER, 2 * GIB, 1),
            *([Held(Category.ACTIVATION, activation, 1)] if activation else ()),
        ],
    )
    return Outcome(accounts=[account], ended="3 optimizer steps", **more)


class TestExecutors:
    def run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ranks: int,
        run: Callable[[Settings], Outcome],
        executor: Any = None,
    ) -> list[Simulation]:
        def simulated(command: Command, settings: Settings, _: object) -> Simulation:
            return Simulation(GPU, True, settings.job, run(settings))

        monkeypatch.setattr(many_ranks, "simulate", simulated)
        each = [Settings(GPU, job=job, quiet=True) for job in jobs_of(ranks, "all", None)]
        return simulate_ranks(SCRIPT, each, {}, executor)

    def test_in_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.run(monkeypatch, 20, lambda settings: outcome(settings.rank * GIB))
        assert [(s.rank, s.account and s.account.reserved) for s in found] == [
            (rank, (3 + rank) * GIB) for rank in range(20)
        ]

    def test_what_an_executor_raises_is_of_that_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Lost:
            """As one whose second worker is gone."""

            def submit(self, function: Any, /, *arguments: Any) -> Future[Any]:
                future: Future[Any] = Future()
                if arguments[1].rank == 1:
                    future.set_exception(ConnectionError("the worker is gone"))
                else:
                    future.set_result(function(*arguments))
                return future

        found = self.run(monkeypatch, 3, lambda settings: outcome(0), Lost())
        assert [s.fits for s in found] == [True, None, True]
        assert found[1].outcome.failure is not None
        assert found[1].outcome.failure.message == "the worker is gone"

    def test_no_device_is_of_all_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(settings: Settings) -> Outcome:
            raise SimulationError("no compiler")

        with pytest.raises(SimulationError, match="no compiler"):
            self.run(monkeypatch, 3, refuse, ThreadPoolExecutor(2))

    def test_down_a_pipeline_of_messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # GIVEN stages of which each needs to hear the one before, and sends nothing without
        ran: list[int] = []

        def stage(settings: Settings) -> Outcome:
            ran.append(settings.rank)
            before = settings.rank - 1
            if settings.rank and before not in settings.heard:
                return outcome(0, unanswered={before})
            return outcome(0, sent={settings.rank + 1: [Announced([[2, 3]], True)]})

        # WHEN all run at once THEN those who heard nothing run again, each when it can hear
        found = self.run(monkeypatch, 4, stage, ThreadPoolExecutor(4))
        assert not any(s.outcome.unanswered for s in found)
        assert sorted(ran) == [0, 1, 1, 2, 2, 3, 3]

    def test_what_nobody_sends_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ran: list[int] = []

        def waits(settings: Settings) -> Outcome:
            ran.append(settings.rank)
            return outcome(0, unanswered={0, 1})

        self.run(monkeypatch, 2, waits)
        assert ran == [0, 1]


class TestMemoryOfTheHost:
    def test_of_a_container(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        free = host.available_memory()
        assert (free or 0) > 1 << 20
        monkeypatch.setattr(host, "CONTROL_GROUP", tmp_path)
        (tmp_path / "memory.max").write_text("9000\n")
        (tmp_path / "memory.current").write_text("7000\n")
        (tmp_path / "memory.stat").write_text("anon 4000\ninactive_file 2500\n")
        assert host.available_memory() == 4500
        (tmp_path / "memory.max").write_text("max\n")
        assert (host.available_memory() or 0) > 1 << 20

    def test_decides_how_many_run_at_once(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = [Settings(GPU, job=job) for job in jobs_of(9, "all", None)]
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
        for free, at_once in ((None, 5), (1, 1), (1 << 60, 5)):
            monkeypatch.setattr(many_ranks, "available_memory", lambda free=free: free)
            many_ranks._pool(said[1:], seconds=3.0)
            assert f"8 more, {at_once} at once, take about" in capsys.readouterr().err


class TestTable:
    def test_fullest_first_and_equal_ranks_in_a_row(self) -> None:
        sizes = (0, GIB, GIB, GIB, 0, 6 * GIB)
        jobs = jobs_of(len(sizes), "all", None)
        found = [
            Simulation(GPU, True, job, outcome(size)) for job, size in zip(jobs, sizes, strict=True)
        ]
        found[5].outcome.time = step_time(4_000_000)
        text = render(found)
        assert text.startswith("Fits NVIDIA GeForce RTX 4090 (23.6 GiB): needs 9.00 GiB")
        table = text[text.index("By rank") :].splitlines()
        assert [" ".join(line.split()) for line in (table[1], *table[3:7])] == [
            "rank needed reserved allocated step fits beside rank 5",
            "5 9.00 GiB 9.00 GiB 8.00 GiB 4.00 ms yes",
            "1-3 4.00 GiB 4.00 GiB 3.00 GiB yes -5.00 GiB activation",
            "0, 4 3.00 GiB 3.00 GiB 2.00 GiB yes -6.00 GiB activation",
            "the verdict, and what follows, is of rank 5",
        ]

    def test_why_a_rank_says_nothing(self) -> None:
        failure = Failure(kind="KeyError", message="'mesh'\nmore", trace="")
        outcomes = [
            outcome(GIB),
            Outcome(failure=failure),
            Outcome(status=5),
            Outcome(),
            Outcome(undecided="it was ended after 3 s (--timeout)"),
        ]
        jobs = jobs_of(len(outcomes), "all", None)
        found = [
            Simulation(GPU, True if o.accounts else None, job, o)
            for job, o in zip(jobs, outcomes, strict=True)
        ]
        text = render(found)
        assert text.startswith("It cannot be said whether this fits")
        rows = text[text.index("By rank") :].splitlines()
        ends = {row[0]: " ".join(row.split()[-4:]) for row in rows if row[:1].isdigit()}
        assert ends["1"].endswith("failed KeyError: 'mesh'")
        assert ends["2"].endswith("failed exit status 5")
        assert ends["3"].endswith("failed used no GPU")
        assert "undecided it was ended after" in " ".join(text.split())
        assert result_of(found).fits is None
        # A rank that does not fit is enough to say no.
        found[0].fits = False
        assert result_of(found).fits is False
        assert render(found).startswith("Does not fit")


INTERRUPTED = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.simulate import many_ranks, parent
from memprof.what_if.simulate.command_line import Command, jobs_of
script = "import os, time; os.write(2, b'%d ' % os.getpid()); time.sleep(300)"
words = [sys.executable, "-c", script]
many_ranks.simulate = lambda _, settings, environment: parent._wait(words, environment, settings)
each = [parent.Settings(find_gpu("t4"), job=job) for job in jobs_of(5, "all", None)]
many_ranks.simulate_ranks(Command("", (), ("t.py",)), each, os.environ, ThreadPoolExecutor(3))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_scripts_end_with_their_parent(number: signal.Signals) -> None:
    words = [sys.executable, "-c", INTERRUPTED]
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stderr is not None
        scripts = b""
        while scripts.count(b" ") < 3:
            scripts += parent.stderr.read(1)
        parent.send_signal(number)
        assert parent.wait(60) != 0
    for script in scripts.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(script), 0)

"""Processes that a script starts: each is counted, also where all share one device."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memprof.what_if.simulate import processes
from memprof.what_if.simulate.command_line import BadInput, Command, parse
from memprof.what_if.simulate.failures import uncaught
from memprof.what_if.simulate.outside import estimates
from memprof.what_if.simulate.serving import READY, ready_sign

from .test_simulate import MIB, adds_up, one_rank, simulate

CONTEXT = 512 * MIB

ENGINE = """
import multiprocessing
import os
import sys
import time

import torch


def work(number, holds):
    tensor = torch.empty(100 * (number + 1) << 20, dtype=torch.uint8, device="cuda")
    holds.wait()
    os.write(2, b"free %d\\n" % (torch.cuda.mem_get_info()[0] >> 20))
    holds.wait()
    if number == 0 and "serves" in sys.argv:
        print("it is", "ready", flush=True)
    if number == 2:
        torch.empty(60 << 30, dtype=torch.uint8, device="cuda")
    elif number == 3:
        os.kill(os.getpid(), 9)
    if "trains" in sys.argv:
        weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
        optimizer = torch.optim.Adam([weight])
        weight.sum().backward()
        optimizer.step()
    while "serves" in sys.argv:
        time.sleep(0.1)


if __name__ == "__main__":
    count = int(sys.argv[1])
    found = []
    for method in sys.argv[2].split(","):
        context = multiprocessing.get_context(method)
        holds = context.Barrier(count)
        workers = []
        for n in range(count):
            name = f"{method}-{n}"
            workers.append(context.Process(target=work, args=(n, holds), name=name))
            workers[-1].start()
        for worker in workers:
            worker.join()
        found += [worker.exitcode for worker in workers]
    sys.exit("fails" in sys.argv and any(found))
"""


@pytest.mark.simgpu
def test_processes_that_are_forked_and_started_anew_are_counted(tmp_path: Path) -> None:
    result, errors = simulate(tmp_path, ENGINE, arguments=("2", "spawn,fork"))
    (rank,) = result["ranks"]
    found = {p["name"]: p for p in rank["processes"]}
    # THEN each has its account, which adds up
    assert {name: p["accounts"][0]["reserved"] for name, p in found.items()} == {
        f"{method}-{n}": 100 * (n + 1) * MIB for method in ("spawn", "fork") for n in range(2)
    }
    assert all(adds_up(p["accounts"][0]) for p in found.values())
    # AND the device had to have two of them at once, contexts included
    assert rank["used_at_once_bytes"] == [300 * MIB + 2 * CONTEXT]
    assert rank["needed_bytes"] == 300 * MIB + 2 * CONTEXT
    # AND each saw what the other had taken
    total = result["gpu"]["memory"] - rank["used_at_once_bytes"][0]
    assert errors.count(f"free {total // MIB}") == 4


@pytest.mark.simgpu
def test_a_process_without_memory_and_one_that_is_killed(tmp_path: Path) -> None:
    # Whether the script looks at how they ended, or not.
    arguments = ("4", "spawn")
    rank = one_rank(tmp_path, ENGINE, "--gpu", "rtx-4090", arguments=arguments, status=1)
    # THEN the script does not fit, since what it started did not
    assert rank["fits"] is False
    assert any(a["failure"]["requested"] == 60 << 30 for a in rank["failed_at"] if a["failure"])
    # AND of the process that was killed it is known that it was there
    assert [p["lost"] for p in rank["processes"]].count(True) == 1


@pytest.mark.simgpu
def test_a_process_that_trains_for_one_step_leaves_it_undecided(tmp_path: Path) -> None:
    rank = one_rank(tmp_path, ENGINE, arguments=("1", "fork", "trains"), status=4)
    assert rank["fits"] is None
    assert "one optimizer step was seen" in rank["undecided"]


RANKS = """
import multiprocessing
import os

import torch


def work(rank, count):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
    torch.distributed.init_process_group(
        "nccl", "tcp://127.0.0.1:%d" % PORT, rank=rank, world_size=count
    )
    tensor = torch.empty(100 * (rank + 1) << 20, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(n, 2)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""


@pytest.mark.simgpu
def test_processes_that_see_a_device_each_are_told_apart(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        source = RANKS.replace("PORT", str(free.getsockname()[1]))
    rank = one_rank(tmp_path, source, "--devices", "2")
    found = {a["device"]: a["reserved"] // MIB for a in rank["accounts"]}
    assert found == {"cuda:0": 100, "cuda:1": 200}
    # AND what NCCL is estimated to take counts, as each has a group with the other
    assert rank["used_at_once_bytes"] == [
        reserved * MIB + CONTEXT + estimates()["nccl"].nbytes for reserved in (100, 200)
    ]


EXITS = """
import multiprocessing
import sys
import time


def work():
    time.sleep(2)
    import torch

    torch.empty(512 << 20, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=work).start()
    sys.exit()
"""


@pytest.mark.simgpu
def test_a_script_that_exits_waits_for_its_processes_as_python_does(tmp_path: Path) -> None:
    result, _ = simulate(tmp_path, EXITS)
    (process,) = result["ranks"][0]["processes"]
    assert process["accounts"][0]["reserved"] == 512 * MIB


HANDLES = """
import multiprocessing
import time

import torch


def work(handling):
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        handling.set()
        while True:
            time.sleep(0.01)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    handling = context.Event()
    context.Process(target=work, args=(handling,), daemon=True).start()
    handling.wait()
"""


@pytest.mark.simgpu
def test_an_exception_that_is_being_handled_is_no_end_of_a_process(tmp_path: Path) -> None:
    result, errors = simulate(tmp_path, HANDLES)
    assert "resource_tracker" not in errors
    (process,) = result["ranks"][0]["processes"]
    assert process["failure"] is None
    assert process["out_of_memory"] is not None


SURVIVES = """
import multiprocessing
import sys

import torch


def work():
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        torch.empty(1 << 20, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    open("/is/not/there")
"""


@pytest.mark.simgpu
def test_what_fails_with_ample_memory_too_is_no_want_of_memory(tmp_path: Path) -> None:
    source = SURVIVES.replace("1 << 50", "1 << 39")
    rank = one_rank(tmp_path, source, status=3)
    assert (rank["fits"], rank["failure"]["kind"]) == (None, "FileNotFoundError")


TRAINS = """
import multiprocessing

import torch


def work():
    weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    while True:
        weight.sum().backward()
        optimizer.step()


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
"""


@pytest.mark.simgpu
def test_a_process_that_trains_alone_ends_the_run_by_its_steps(tmp_path: Path) -> None:
    rank = one_rank(tmp_path, TRAINS)
    assert (rank["fits"], rank["ended"]) == (True, "3 optimizer steps")
    assert [a["steps"] for a in rank["accounts"]] == [3]


@pytest.mark.simgpu
def test_a_server_is_left_when_it_is_ready(tmp_path: Path) -> None:
    arguments = ("2", "spawn", "serves")
    rank = one_rank(tmp_path, ENGINE, "--until", "it is ready", arguments=arguments)
    assert rank["ended"] == "it was ready: 'it is ready'"


def test_servers_are_recognised_and_other_programs_of_theirs_are_not() -> None:
    def sign(*program: str) -> str | None:
        return ready_sign(Command("python", (), program))

    assert sign("/venv/bin/vllm", "serve", "model") == READY["vllm"]
    assert sign("-m", "vllm.entrypoints.cli.main", "serve", "model") == READY["vllm"]
    assert sign("-m", "sglang.launch_server", "--model-path", "m") == READY["sglang"]
    assert sign("-m", "sglang.bench_one_batch") is None
    assert sign("vllm", "bench", "latency") is None
    assert sign("serve.py") is None


def test_programs_of_pip_are_taken_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "engine"
    program.write_text(f"#!{sys.executable}\nprint()\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parse(("engine", "serve", "m")).program == (str(program), "serve", "m")
    program.write_text("#!/bin/sh\n")
    with pytest.raises(BadInput, match="is a program, not a Python script"):
        parse(("engine", "serve", "m"))


@pytest.mark.simgpu
def test_an_extension_may_link_to_what_torch_does_not_ask_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a library with functions of NVIDIA's that no library of torch wants
    names = ("cublasHgemm", "cusparseSbsrmm", "cusolverDnCCgesv")
    calls = "".join(f"int {name}(); int call_{name}() {{ return {name}(0); }}\n" for name in names)
    (tmp_path / "extension.c").write_text(calls)
    library = tmp_path / "extension.so"
    source = str(tmp_path / "extension.c")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", str(library)], check=True)
    # THEN it loads, with all its names found at once, and a call says what is not simulated
    loaded = ctypes.CDLL(str(library), mode=2)  # RTLD_NOW
    assert loaded.call_cusolverDnCCgesv() == 9
    assert "not simulated: cusolverDnCCgesv" in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_an_exception_for_which_a_process_exits_is_its_failure(code: int) -> None:
    """As torch.multiprocessing.spawn ends a process whose function has raised."""
    found = []

    def ends() -> None:
        try:
            raise ValueError("no room")
        except ValueError:
            sys.exit(code)
        finally:
            found.append(uncaught())

    with pytest.raises(SystemExit):
        ends()
    (failure,) = found
    assert (failure.kind if failure is not None else None) == ("ValueError" if code else None)


def test_a_process_in_which_inductor_compiles_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed with the script, and was an account that was missing."""
    entry = Path(torch.__file__).parent / "_inductor/compile_worker/__main__.py"
    assert entry.exists()
    monkeypatch.setattr(sys, "argv", [str(entry)])
    monkeypatch.setattr(processes, "_Process", None)
    processes.follow(str(tmp_path))

"""Whole scripts under ``memprof simulate``: sizes from arithmetic, and every way to end.

These run the command as a user does, in the simulated device's own environment, without values.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from as_a_user import memprof
from outputs import checked

pytestmark = pytest.mark.simgpu

MIB = 1 << 20
N = 1024
WEIGHT = 4 * N * N
"""Bytes of a square float32 matrix, of which the scripts' tensors are made: 4 MiB."""


def simulate(
    tmp_path: Path,
    source: str,
    *options: str,
    arguments: tuple[str, ...] = (),
    status: int = 0,
) -> tuple[dict[str, Any], str]:
    """JSON and standard error of a script, with the exit status that is expected."""
    script = tmp_path / "script.py"
    script.write_text(source)
    words = ("--json", *options, "--", "python", str(script), *arguments)
    done = memprof("simulate", *words, status=status)
    return checked("simulate", done.stdout) if done.stdout else {}, done.stderr


def one_rank(tmp_path: Path, source: str, *options: str, **more: Any) -> dict[str, Any]:
    """What is said of the only rank of a script."""
    (rank,) = simulate(tmp_path, source, *options, **more)[0]["ranks"]
    return rank


def rows(result: dict[str, Any], rank: int = 0) -> dict[str, int]:
    """Bytes of the account by category."""
    found: dict[str, int] = {}
    for row in result["ranks"][rank]["accounts"][0]["rows"]:
        found[row["category"]] = found.get(row["category"], 0) + row["nbytes"]
    return found


def adds_up(account: dict[str, Any]) -> bool:
    parts = sum(r["nbytes"] for r in account["rows"]) + sum(p["free"] for p in account["pools"])
    return (
        account["unexplained"] == 0
        and parts + account["rounding"] + account["awaiting"] == account["reserved"]
    )


TRAINING = f"""
import torch
weights = [torch.nn.Parameter(torch.empty({N}, {N}, device="cuda")) for _ in range(3)]
optimizer = torch.optim.Adam(weights, fused=True)
while True:
    data = torch.ones({N}, {N}, device="cuda")
    torch.cuda.reset_peak_memory_stats()  # as many scripts do: the answer must not depend on it
    sum((w * data).sum() for w in weights).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_training_step_to_the_byte(tmp_path: Path) -> None:
    result, _ = simulate(tmp_path, TRAINING, "--gpu", "a100-40gb")
    assert result["fits"] is True
    (rank,) = result["ranks"]
    (account,) = rank["accounts"]
    assert adds_up(account)
    assert account["steps"] == 3
    assert rank["ended"] == "3 optimizer steps"
    found = rows(result)
    assert found["parameter"] == 3 * WEIGHT
    # Two moments, and a step count each.
    assert found["optimizer_state"] == 2 * 3 * WEIGHT + 3 * 4
    assert account["name"] == "NVIDIA A100-SXM4-40GB"
    assert result["needed_bytes"] == account["reserved"] + sum(
        o["nbytes"] for o in account["outside"]
    )


ACCUMULATING = f"""
import torch
weights = [torch.nn.Parameter(torch.empty({N}, {N}, device="cuda")) for _ in range(3)]
optimizer = torch.optim.Adam(weights, fused=True)
while True:
    for microbatch in range(20):
        data = torch.ones({N}, {N}, device="cuda")
        kept = [w * data for w in weights]
        sum(k.sum() for k in kept).backward()
        for _ in range(4_000):
            torch.empty(1, device="cuda")  # what many layers ask for: no new peak
    del kept
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_long_accumulation_is_seen_over_whole_steps(tmp_path: Path) -> None:
    """Its second step, with activations and state at once, needs more than the first; nothing is
    new before for 80,000 blocks."""
    result, errors = simulate(tmp_path, ACCUMULATING, "--gpu", "a100-40gb")
    (rank,) = result["ranks"]
    assert (rank["steps"], rank["ended"], rank["undecided"]) == (3, "3 optimizer steps", "")
    # Weights, gradients, two moments, what the microbatch before kept and this one keeps, data.
    most = (3 + 3 + 2 * 3 + 3 + 3 + 1) * WEIGHT
    assert most <= rank["allocated_bytes"] < most + WEIGHT
    # Progress is told by the clock: how many there were by then hangs on the machine.
    assert re.search(r"step \d, \d+ backwards", errors)


def test_steps_of_a_compiled_optimizer_count(tmp_path: Path) -> None:
    """No hook of torch's tells of them."""
    source = f"""
import torch
weight = torch.nn.Parameter(torch.empty({N}, {N}, device="cuda"))
optimizer = torch.optim.Adam([weight])

@torch.compile(backend="aot_eager")
def step():
    optimizer.step()

while True:
    for microbatch in range(5):
        weight.sum().backward()
    step()
    optimizer.zero_grad()
"""
    result, _ = simulate(tmp_path, source)
    (rank,) = result["ranks"]
    assert (rank["steps"], rank["ended"]) == (3, "3 optimizer steps")
    assert rows(result)["optimizer_state"] == 2 * WEIGHT + 4


@pytest.mark.parametrize(("every", "steps", "status"), [(5, 10, 0), (1_000, 30, 4)])
def test_an_optimizer_that_comes_every_few_steps_is_waited_for(
    tmp_path: Path, every: int, steps: int, status: int
) -> None:
    """A generator is larger than the discriminator that makes the first steps alone."""
    source = f"""
import torch
small = torch.nn.Parameter(torch.empty(1024, device="cuda"))
large = torch.nn.Parameter(torch.empty({N}, {N}, device="cuda"))
first, other = torch.optim.Adam([small]), torch.optim.Adam([large])
n = 0
while n := n + 1:
    for weight, optimizer in [(small, first), (large, other)][: 1 + (n % {every} == 0)]:
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    rank = one_rank(tmp_path, source, status=status)
    assert rank["steps"] == steps
    assert bool(rank["undecided"]) is bool(status)
    assert (rank["allocated_bytes"] >= 4 * WEIGHT) is (every == 5)


def test_what_does_not_fit_is_shown_on_a_larger_device(tmp_path: Path) -> None:
    # GIVEN a script that takes two GiB more than the device says it has
    source = """
import torch
gib = torch.cuda.mem_get_info()[1] >> 30
kept = [torch.empty(256, 1024, 1024, device="cuda") for _ in range(gib + 2)]
"""
    result, _ = simulate(tmp_path, source, "--memory", "6GiB", "-q", status=1)
    # THEN the larger one says that it has as much as that on which it failed
    (rank,) = result["ranks"]
    assert result["fits"] is False
    assert rank["reserved_bytes"] == 8 << 30
    assert rank["failed_at"][0]["failed"][0]["nbytes"] == 1 << 30
    assert rank["failed_at"][0]["failed"][0]["frame"]["line"] == 4
    assert rank["failure"] is None


def test_a_limit_of_the_programs_own_is_not_lifted(tmp_path: Path) -> None:
    source = """
import torch
torch.cuda.set_per_process_memory_fraction(0.5)
kept = [torch.empty(256, 1024, 1024, device="cuda") for _ in range(8)]
"""
    result, _ = simulate(tmp_path, source, "--memory", "6GiB", "-q", status=1)
    assert result["ranks"][0]["reserved_bytes"] == 3 << 30


def test_what_does_not_fit_in_a_thread_does_not_fit(tmp_path: Path) -> None:
    # GIVEN a script whose threads need 8 GiB and 1, and which ends well whatever becomes of them
    source = """
import threading
import torch
def hold(gib):
    kept = [torch.empty(256, 1024, 1024, device="cuda") for _ in range(gib)]
for gib in (8, 1):
    thread = threading.Thread(target=hold, args=(gib,))
    thread.start()
    thread.join()
"""
    # WHEN it is simulated on 6 GiB
    result, _ = simulate(tmp_path, source, "--memory", "6GiB", "-q", status=1)
    # THEN it does not fit
    assert result["fits"] is False
    assert result["ranks"][0]["reserved_bytes"] == 8 << 30


def test_a_smaller_device_makes_the_allocator_give_back_what_is_free(tmp_path: Path) -> None:
    source = """
import torch
first = torch.empty(512, 1024, 1024, dtype=torch.int8, device="cuda")
del first
second = torch.empty(768, 1024, 1024, dtype=torch.int8, device="cuda")
"""
    rank = one_rank(tmp_path, source, "-q")
    assert rank["reserved_bytes"] == (512 + 768) * MIB
    context = rank["accounts"][0]["outside"][0]["nbytes"] // MIB
    for more, expected in ((20, 0), (-20, 1)):
        memory = f"{768 + context + more}MiB"
        simulate(tmp_path, source, "--memory", memory, "-q", status=expected)


def test_inference_ends_when_its_peak_stands_still(tmp_path: Path) -> None:
    source = f"""
import torch
model = torch.nn.Linear({N}, {N}, bias=False, device="cuda")
x = torch.empty(1, {N}, device="cuda")
with torch.inference_mode():
    while True:
        model(x)
"""
    result, _ = simulate(tmp_path, source)
    assert result["ranks"][0]["ended"].startswith("the peak stood still")
    assert rows(result)["parameter"] == WEIGHT


@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
def test_one_rank_of_many(tmp_path: Path, wrapper: str) -> None:
    wrap = {
        "fsdp": "from torch.distributed.fsdp import fully_shard\nfully_shard(model)",
        "ddp": "model = torch.nn.parallel.DistributedDataParallel(model)",
    }[wrapper]
    source = f"""
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
assert (dist.get_rank(), dist.get_world_size()) == (int(os.environ["RANK"]), 16)
assert torch.cuda.device_count() == 8
objects = [None] * 16
dist.all_gather_object(objects, dist.get_rank())
assert objects == [dist.get_rank()] * 16
dist.barrier()
model = torch.nn.Sequential(
    *[torch.nn.Linear({N}, {N}, bias=False, device="cuda") for _ in range(4)]
)
{wrap}
optimizer = torch.optim.Adam(model.parameters(), fused=True)
while True:
    model(torch.ones(8, {N}, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    options = ("--world-size", "16", "--ranks", "0,9")
    result, _ = simulate(tmp_path, source, *options)
    assert [r["rank"] for r in result["ranks"]] == [0, 9]
    assert [r["accounts"][0]["device"] for r in result["ranks"]] == ["cuda:0", "cuda:1"]
    shards = 16 if wrapper == "fsdp" else 1
    for number, rank in enumerate(result["ranks"]):
        assert adds_up(rank["accounts"][0])
        state = rows(result, number)["optimizer_state"]
        assert state // (2 * WEIGHT * 4 // shards) == 1
        assert any(o["what"] == "NCCL" for o in rank["accounts"][0]["outside"])


BACKWARD = """
import torch
weight = torch.nn.Parameter(torch.ones(9, device="cuda"))
optimizer = torch.optim.SGD([weight])
weight.sum().backward()"""

EXITS_FOR_MEMORY = """
import sys
import torch
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    sys.exit("too little memory")"""


@pytest.mark.parametrize(
    ("source", "options", "status", "says"),
    [
        ("raise RuntimeError('by itself')", (), 3, "the script failed: RuntimeError: by itself"),
        ("import sys; sys.exit(5)", (), 3, "exit status 5"),
        (EXITS_FOR_MEMORY, (), 1, "out of memory; again with ample memory"),
        ("import os; os._exit(7)", (), 3, "exit status 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", (), 3, "SIGSEGV"),
        ("import time; time.sleep(600)", ("--timeout", "3"), 4, "it was ended after 3 s"),
        ("import torch", (), 3, ""),
        ("import torch; torch.ones(2 << 20, device='cuda')", ("--fail-above", "9MiB"), 1, "more"),
        (f"{BACKWARD}; optimizer.step()", (), 4, "undecided: the script ended: one optimizer step"),
        (BACKWARD, (), 4, "no optimizer step was seen"),
        (BACKWARD, ("--fail-above", "2MiB"), 1, "more than 2.00 MiB"),
    ],
    ids=[
        *("raises", "exits", "exits for memory", "leaves", "crashes", "hangs", "no GPU"),
        *("above the limit", "one step", "no step", "no step, above the limit"),
    ],
)
def test_every_way_to_end(
    tmp_path: Path, source: str, options: tuple[str, ...], status: int, says: str
) -> None:
    result, errors = simulate(tmp_path, source, *options, status=status)
    assert status == 1 or result["fits"] is None
    assert says in errors
    assert "launch.py" not in errors


def test_a_profile_for_other_commands(tmp_path: Path) -> None:
    path = tmp_path / "run.memprof"
    result, _ = simulate(tmp_path, TRAINING, "-o", str(path), "-q")
    done = subprocess.run(
        [sys.executable, "-m", "memprof", "report", "--full", "--bytes", str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"{result['ranks'][0]['reserved_bytes']:,} B" in done.stdout
    assert "optimizer state" in done.stdout

"""What follows from the allocator's history beside its own snapshot, block by block.

Random programs of allocations, streams, pools and captures, in a process for each setting of the
allocator, which it reads once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.simgpu

_PROGRAM = """
import random, sys, torch
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession

seed, late = int(sys.argv[1]), sys.argv[2] == "late"
rng = random.Random(seed)
watch = AllocatorSession(guest=late)
if not late:
    watch.install()
torch.cuda.init()
streams = [torch.cuda.Stream() for _ in range(2)]
pool = torch.cuda.MemPool()
live, graphs = [], []


def empty():
    low, high = rng.choice([(1, 1 << 20), (1 << 20, 12 << 20), (10 << 20, 60 << 20)])
    return torch.empty(rng.randint(low, high), dtype=torch.uint8, device="cuda")


def agrees():
    watch.drain()
    (replay,) = watch.histories.values()
    stats, real = torch.cuda.memory_stats(), {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                waits = block["state"] == "active_pending_free"
                real[block["address"]] = block["size"], block["requested_size"], waits
    mine = {b.address: (b.size, b.requested, b.freed_after is not None) for b in replay.live}
    assert mine == real
    assert replay.reserved == stats["reserved_bytes.all.current"]
    assert replay.allocated_bytes == stats["allocated_bytes.all.current"]
    assert replay.most_allocated == stats["allocated_bytes.all.peak"]
    assert replay.peak.reserved == stats["reserved_bytes.all.peak"]
    assert not replay.corrected


for i in range(400):
    if late and i == 150:
        torch.cuda.reset_peak_memory_stats()
        watch.install()
    what = rng.random()
    try:
        if what < 0.35:
            live.append(empty())
        elif what < 0.42:
            with torch.cuda.stream(rng.choice(streams)):
                live.append(empty())
        elif what < 0.5:
            with torch.cuda.use_mem_pool(pool):
                live.append(empty())
        elif what < 0.93:
            for _ in range(min(len(live), rng.randint(1, 3))):
                tensor = live.pop(rng.randrange(len(live)))
                if rng.random() < 0.2:
                    tensor.record_stream(rng.choice(streams))
                del tensor
        elif what < 0.97:
            torch.cuda.empty_cache()
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                live += [empty() for _ in range(3)]
                live.pop(-2)
            graphs = [*graphs[-2:], graph]
    except torch.OutOfMemoryError:
        del live[: len(live) // 2]
    if i % 50 == 0 and (i >= 150 or not late):
        agrees()
agrees()
(account,) = watch.accounts()
assert account.unexplained == 0
assert account.live + account.rounding + account.awaiting + account.free == account.reserved
assert not account.notes, account.notes
"""


@pytest.mark.parametrize(
    "settings",
    [
        "",
        "expandable_segments:True",
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                "max_split_size_mb:30",
                "roundup_power2_divisions:4",
                "garbage_collection_threshold:0.6",
            )
        ),
    ],
)
def test_the_history_agrees_with_the_snapshot(settings: str) -> None:
    for seed, begins in ((1, "with CUDA"), (4, "with CUDA"), (4, "late")):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(seed), begins],
            env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings, "SIMGPU_MEM_MB": "4000"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_counters_that_are_set_back_do_not_move_marks() -> None:
    program = """
import torch
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession
watch = AllocatorSession()
watch.install()
weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
optimizer = torch.optim.Adam([weight], fused=True)
for _ in range(3):
    (weight * 2).sum().backward()
    torch.cuda.reset_accumulated_memory_stats()
    optimizer.step()
    optimizer.zero_grad()
(account,) = watch.accounts()
found = {p.value: n for p, n in account.by_category().items()}
assert found["parameter"] == 4 << 20, found
assert found["optimizer_state"] == (8 << 20) + 4, found
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_account_of_what_nobody_compiled_imports_no_compiler() -> None:
    # It takes a second, and torch's snapshot asks for it.
    program = """
import sys
import torch
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession
watch = AllocatorSession()
watch.install()
kept = torch.empty(1024, device="cuda")
assert watch.accounts()[0].live
assert "torch._inductor" not in sys.modules
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    environment = os.environ | {"SIMGPU_VALUES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

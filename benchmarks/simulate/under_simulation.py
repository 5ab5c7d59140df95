"""Runs a script on the simulated device, as rank 0 of as many fake ranks as asked for, and writes
what the allocator counted to a file.

    simulated_cuda/run.sh python under_simulation.py REPORT WORLD_SIZE SCRIPT ARGUMENTS…

This is what ``benchmarks/simulate_accuracy.py`` starts; the scripts know nothing of it.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
from typing import Any


def write_counters(path: str) -> None:
    import torch

    stats = torch.cuda.memory_stats()
    if not stats:
        return
    counters = {
        name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved", "active")
    }
    with open(path, "w") as file:
        json.dump(counters | {"retries": stats["num_alloc_retries"]}, file)


def fake_process_group(world_size: int) -> None:
    """Makes ``init_process_group`` give rank 0 of so many ranks, whose collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    real = dist.init_process_group

    def init_process_group(*_: Any, **options: Any) -> None:
        real("fake", rank=0, world_size=world_size, store=FakeStore())

    dist.init_process_group = init_process_group
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )


def main() -> None:
    report, world_size, script, *arguments = sys.argv[1:]
    import torch

    torch.backends.cuda.enable_cudnn_sdp(False)  # not simulated yet
    torch.backends.cudnn.enabled = False
    torch.nn.init.trunc_normal_ = lambda tensor, *_, **__: tensor  # erfinv_ needs nvrtc
    if int(world_size) > 1:
        fake_process_group(int(world_size))
    atexit.register(write_counters, report)
    sys.argv = [script, *arguments]
    if script.startswith("-m"):
        runpy.run_module(script[2:], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()

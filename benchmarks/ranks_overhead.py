"""What profiling adds to a step of a job of several ranks, beside inductor in the same run.

    python benchmarks/ranks_overhead.py --ranks 4 [--quick]

Starts torchrun with gloo on the CPU. Every rank holds the same DDP model three times: with
``backend="inductor"``, a second time so (the control, which shows the noise), and with
``backend="memprof"`` inside ``memprof.profile("….memprof")``, which streams. Turns take some
seconds, so that chunks of the stream are written in them; their order changes from round to round,
with a barrier in between: where ranks outnumber cores one slow rank makes all wait. A step is timed
on each rank by itself; figures are medians over rounds of the mean of a turn, of the slowest rank.
The mean, because a step in which a chunk is written is slower than the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from statistics import fmean, median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import memprof

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines

NAMES = ("inductor", "control", "memprof")


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + y


class Trainer:
    """One model and its optimizer."""

    def __init__(self, backend: str, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(*[Layer(args.width) for _ in range(args.layers)])
        self.model = torch.compile(DistributedDataParallel(model), backend=backend)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.x = torch.randn(args.batch, args.width)

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def rank_main(args: argparse.Namespace) -> None:
    """What each rank does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trainers = {
        name: Trainer("memprof" if name == "memprof" else "inductor", args) for name in NAMES
    }
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if not args.out else args.out
        for trainer in trainers.values():
            for _ in range(args.warm_up):
                trainer.step()
        turns: dict[str, list[float]] = {name: [] for name in NAMES}
        table = Lines(("round of rank 0", 15), *((f"{name} ms", 12) for name in NAMES))
        if rank == 0:
            print(f"{world} ranks, DDP on gloo, torch {torch.__version__}, {args.rounds} rounds")
            table.header()
        for round in range(args.rounds):
            for k in range(len(NAMES)):
                name = NAMES[(k + round) % len(NAMES)]
                times = []
                path = f"{folder}/{{rank}}.memprof"
                dist.barrier()
                with memprof.profile(path) if name == "memprof" else nullcontext():
                    for _ in range(args.steps):
                        start = time.perf_counter()
                        trainers[name].step()
                        times.append(time.perf_counter() - start)
                turns[name].append(fmean(times))
            if rank == 0:
                table.row([str(round), *(f"{turns[name][-1] * 1e3:.2f}" for name in NAMES)])
    gathered: list[dict[str, list[float]]] = [{} for _ in range(world)]
    dist.all_gather_object(gathered, turns)
    if rank == 0:
        figures = {}
        for name in NAMES:
            figures[name] = median(max(r[name][i] for r in gathered) for i in range(args.rounds))
        # Ratios of turns of the same round: what slows a whole round cancels out.
        ratios = {
            name: median(
                max(r[name][i] for r in gathered) / max(r["inductor"][i] for r in gathered)
                for i in range(args.rounds)
            )
            for name in NAMES
        }
        print("slowest rank of each round, medians")
        for name in NAMES:
            print(f"  {name:<9} {figures[name] * 1e3:8.2f} ms a step   x {ratios[name]:.4f}")
        print(json.dumps({"ranks": world, "step_s": figures, "ratio": ratios}))
    dist.destroy_process_group()
    # See test/ranks/worker.py: DDP and gloo can wait for each other at the end.
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 16 steps")
    parser.add_argument("--rounds", type=int, help="8")
    parser.add_argument("--steps", type=int, help="in a turn (48)")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--out", default="", help="keep the profiles in this folder")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 8)
    args.steps = args.steps or (16 if args.quick else 48)
    if args.rank:
        rank_main(args)
        return
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    raise SystemExit(
        subprocess.run([*command, str(Path(__file__)), "--rank", *sys.argv[1:]]).returncode
    )


if __name__ == "__main__":
    main()

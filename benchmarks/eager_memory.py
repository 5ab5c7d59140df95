"""What ``memprof.profile(eager=True)`` costs a training step, beside the same step without it.

    TORCH=2.11.0 simulated_cuda/run.sh .venv-simgpu-2.11.0/bin/python benchmarks/eager_memory.py

On the simulated device without values a step is its time on the host, of which all that the session
does is part: on a GPU that is busy it hides behind the kernels. The GPT of ``examples/gpt`` is
trained with fused AdamW eagerly and under ``backend="inductor"``, in short blocks that alternate in
an order that rotates; each block is compared with the first plain block of its own round, and a
second plain block is the control. It is the processor's time, of all threads, since the machine may
have other work. Medians over rounds are printed, apart the first 20 steps of a session, in each of
which the storages of parameters, gradients and state are looked up, and the session's end, where
what is left of the history is followed.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

import memprof

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt"))

from model import GPT, Config

LOOKS = 20

KINDS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "control": nullcontext,
    "eager=True": lambda: memprof.profile(eager=True),
}


def trainer(backend: str) -> Callable[[], None]:
    """A training step of a model of its own."""
    torch.manual_seed(0)
    config = Config()
    model = GPT(config).cuda()
    run = torch.compile(model, backend=backend) if backend else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    text = torch.zeros(4, config.context + 1, dtype=torch.long, device="cuda")

    def step() -> None:
        run(text[:, :-1], text[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(step: Callable[[], None], steps: int, rounds: int) -> None:
    """Print milliseconds a step, and how they compare, of each kind."""
    first: dict[str, list[float]] = {kind: [] for kind in KINDS}
    later: dict[str, list[float]] = {kind: [] for kind in KINDS}
    ends: list[float] = []
    for _ in range(10):
        step()
    kinds = list(KINDS)
    for turn in range(rounds):
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
            gc.collect()
            with KINDS[kind]():
                times = [time.process_time()]
                for count in (LOOKS, steps):
                    for _ in range(count):
                        step()
                    times.append(time.process_time())
            first[kind].append((times[1] - times[0]) / LOOKS * 1e3)
            later[kind].append((times[2] - times[1]) / steps * 1e3)
            if kind == "eager=True":
                ends.append((time.process_time() - times[2]) * 1e3)
    for what, ms in ((f"first {LOOKS} steps", first), (f"next {steps} steps", later)):
        for kind in kinds:
            ratio = statistics.median(a / b for a, b in zip(ms[kind], ms["plain"], strict=True))
            each = statistics.median(ms[kind])
            print(f"  {what:16} {kind:12} {each:8.2f} ms a step  {ratio:6.3f}")
    print(f"  end of the session: {statistics.median(ends):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for backend in ("", "inductor"):
        print(backend or "no compiler")
        step = trainer(backend)
        asked = torch.cuda.memory_stats()["allocation.all.allocated"]
        step()
        asked = torch.cuda.memory_stats()["allocation.all.allocated"] - asked
        measure(step, arguments.steps, arguments.rounds)
        print(f"  {asked} allocations in a step")


if __name__ == "__main__":
    main()

"""What a step costs under ``backend="memprof"`` and a session, beside Inductor and reduce-overhead.

    make bench-session                      # needs the simulated device (simulated_cuda/README.md)
    make bench-session ARGS=--quick

On the simulated device without values a step is its time on the host, of which all that memprof
does is part; on a GPU that is busy it hides behind the kernels. A GPT of the size of GPT-2 124M is
trained with fused AdamW in each way by turns: blocks of steps alternate in an order that rotates,
and each is compared with the block of its peer in the same round. The control is the peer once
more, compiled apart. It is the processor's time, of all threads, since the machine may have other
work; medians over rounds, and half of the distance between their quartiles.

``memprof`` is in a session that writes a file while the program runs, as
``with memprof.profile("run.memprof")`` does. Its first calls, which are observed, are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import memprof

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "gpt"))

from model import GPT, Config

WARM_UP = 8

WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "inductor": ({"backend": "inductor"}, "inductor"),
    "control": ({"backend": "inductor"}, "inductor"),
    "memprof, no graphs": ({"backend": "memprof", "options": {"graphs": False}}, "inductor"),
    "reduce-overhead": ({"mode": "reduce-overhead"}, "reduce-overhead"),
    "control of it": ({"mode": "reduce-overhead"}, "reduce-overhead"),
    "memprof": ({"backend": "memprof"}, "reduce-overhead"),
}
"""How each compiles, and the one that it is compared with."""


def trainer(layers: int, **arguments: Any) -> Callable[[], None]:
    """A training step of a model of its own."""
    torch.manual_seed(0)
    config = Config(vocabulary=50_304, context=256, width=768, heads=12, layers=layers)
    model = GPT(config).cuda()
    run = torch.compile(model, **arguments)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    text = torch.zeros(2, config.context + 1, dtype=torch.long, device="cuda")

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@contextlib.contextmanager
def session(way: str, folder: str) -> Iterator[None]:
    """A session, for memprof."""
    if not way.startswith("memprof"):
        yield
        return
    with memprof.profile(str(Path(folder) / "run.memprof")):
        yield


def measure(steppers: dict[str, Callable[[], None]], steps: int, rounds: int) -> None:
    """Print milliseconds a step of each way, and how it compares with its peer."""
    times: dict[str, list[float]] = {way: [] for way in steppers}
    ways = list(steppers)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            shift = turn % len(ways)
            for way in ways[shift:] + ways[:shift]:
                gc.collect()
                with session(way, folder):
                    steppers[way]()
                    began = time.process_time()
                    for _ in range(steps):
                        steppers[way]()
                    times[way].append((time.process_time() - began) / steps * 1e3)
    for way in ways:
        ratios = [a / b for a, b in zip(times[way], times[WAYS[way][1]], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {way:20} {statistics.median(times[way]):8.3f} ms a step  {middle:6.3f} of "
            f"{WAYS[way][1]} (+- {(high - low) / 2:.3f})",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="two layers, few rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.layers, arguments.rounds = 2, 6
    logging.disable(logging.WARNING)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, simulated without values")
    steppers = {}
    for way, (how, _) in WAYS.items():
        steppers[way] = trainer(arguments.layers, **how)
        with session(way, tempfile.mkdtemp()):
            for _ in range(WARM_UP):
                steppers[way]()
    measure(steppers, arguments.steps, arguments.rounds)


if __name__ == "__main__":
    main()

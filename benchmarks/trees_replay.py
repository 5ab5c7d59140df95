"""Host time of a replay: our graph trees against torch's, in one process, by turns.

Each case is one compiled function with N static inputs (parameters) and 2 copied ones. Two
figures are taken: the time inside the manager's ``run``, by a clock around it in otherwise
unchanged calls, and the time of the whole call. "held" keeps the result in a variable
while the next call runs, as ``loss = model(x)`` does; "dropped" does not.

    make bench-trees [ARGS=--quick]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch._inductor.cudagraph_trees as torch_trees

from memprof.cudagraph_trees.call.container import get_manager, reset_cudagraph_trees
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.replay import native

sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines

SIZES = (1, 10, 50, 200)


class Model(torch.nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.ones(8) for _ in range(n))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for w in self.weights:
            x = x + w
        return x * y


class Clock:
    """The time inside a function, and how often it was called."""

    def __init__(self) -> None:
        self.ns = 0
        self.calls = 0


def build(n: int, ours: bool) -> tuple[Callable[[], None], Callable[[], None], Clock]:
    """One function: call it and drop the result; call it and hold it; its clock."""
    clock = Clock()
    model = Model(n).cuda()
    x, y = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model(x, y)  # type: ignore[no-any-return]

    # Dynamo keeps compiled code by code object: the two variants must not share one.
    forward.__code__ = forward.__code__.replace(co_firstlineno=1 if ours else 2)
    with timed_runs(clock, ours), torch.no_grad():
        compiled = torch.compile(forward, mode="reduce-overhead", dynamic=False)
        for _ in range(4):
            compiled(x, y)

    @torch.no_grad()
    def dropped() -> None:
        for _ in range(100):
            compiled(x, y)

    @torch.no_grad()
    def held() -> None:
        for _ in range(100):
            out = compiled(x, y)  # noqa: F841

    return dropped, held, clock


@contextmanager
def timed_runs(clock: Clock, ours: bool) -> Iterator[None]:
    """Wraps the manager's run of functions that are made within."""
    if ours:
        from memprof.cudagraph_trees.call import manager as m

        cls, name = m.CUDAGraphTreeManager, "call"
    else:
        cls, name = torch_trees.CUDAGraphTreeManager, "run"
    plain = getattr(cls, name)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        out = plain(self, *args, **kwargs)
        clock.ns += time.perf_counter_ns() - start
        clock.calls += 1
        return out

    setattr(cls, name, run)
    try:
        if ours:
            with use_in_inductor():
                yield
        else:
            yield
    finally:
        setattr(cls, name, plain)


def measure(fns: list[tuple[Callable[[], None], Clock]], rounds: int) -> list[tuple[float, float]]:
    """Least (microseconds inside, microseconds a call) of each over all rounds, by turns."""
    inside: list[list[float]] = [[] for _ in fns]
    whole: list[list[float]] = [[] for _ in fns]
    for r in range(rounds + 3):
        for i, (fn, clock) in enumerate(fns):
            clock.ns = clock.calls = 0
            start = time.perf_counter_ns()
            fn()
            took = time.perf_counter_ns() - start
            if r >= 3:
                inside[i].append(clock.ns / clock.calls / 1e3)
                whole[i].append(took / 100 / 1e3)
    return [(min(a), min(b)) for a, b in zip(inside, whole, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two sizes, 10 rounds")
    parser.add_argument("--rounds", type=int, help="of 100 calls each (40)")
    parser.add_argument("--json", help="write the figures there")
    args = parser.parse_args()
    rounds = args.rounds or (10 if args.quick else 40)
    with suppress(RuntimeError):  # Without a compiler, Python is what is measured.
        native.build()
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}")
    print("µs inside the manager's run, and of the whole call")
    table = Lines(
        *(("static inputs", 13), ("result", -7), ("inside: ours", 12), ("torch", 7)),
        *(("ratio", 5), ("whole: ours", 11), ("torch", 7), ("ratio", 5)),
    )
    table.header()
    ratios = []
    rows = []
    for n in SIZES[::2] if args.quick else SIZES:
        ours, theirs = build(n, True), build(n, False)
        assert get_manager(0, create_if_none_exists=False) is not None
        gc.collect()
        gc.disable()
        for k, result in enumerate(("dropped", "held")):
            (a, wa), (b, wb) = measure(
                [(ours[k], ours[2]), (theirs[k], theirs[2])],  # type: ignore[list-item]
                rounds,
            )
            ratios.append(a / b)
            rows.append(
                {"static": n, "result": result, "ours": a, "torch": b, "call": wa, "torch_call": wb}
            )
            inside = (f"{a:.2f}", f"{b:.2f}", f"{a / b:.2f}")
            table.row([str(n), result, *inside, f"{wa:.2f}", f"{wb:.2f}", f"{wa / wb:.2f}"])
        gc.enable()
        del ours, theirs
        torch._dynamo.reset()
        reset_cudagraph_trees()
    print(f"median ratio inside run: {statistics.median(ratios):.2f}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"torch": torch.__version__, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()

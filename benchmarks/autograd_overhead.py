"""memprof's compiled autograd beside torch's own, in one run: `make bench-autograd`.

For each model and forward (plain, compiled): captured nodes; capture time (from the engine's
first call to the graph that the compiler gets, median); fixed cost of a backward (the engine
with a captured graph that does nothing, median); steady-state backward with aot_eager
(median); live peak of the captured graph, run node by node with real tensors. The two take
turns within each round. Ratios are memprof / torch; lower is better.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "test"))
import torch._dynamo.compiled_autograd as torchs
from compiled_autograd.support import peak_of
from models import zoo

from memprof import compiled_autograd as ours

TORCHS_CLASS = torchs.AutogradCompilerInstance
CLASSES: dict[str, Any] = {"torch": TORCHS_CLASS, "memprof": ours.AutogradCompilerInstance}
engine: Any = torch._C._dynamo.compiled_autograd


class Captured:
    """Runs backwards with one of the two classes, and times captures."""

    def __init__(self, who: str, compiler: Callable[[Any], Any], dynamic: bool) -> None:
        self.capture_s = 0.0
        self.graph: Any = None
        self._class, self._compiler, self._dynamic = CLASSES[who], compiler, dynamic
        self._begin = 0.0

    def _compile(self, graph: Any) -> Any:
        self.capture_s = time.perf_counter() - self._begin
        self.graph = graph
        return self._compiler(graph)

    def _new(self) -> Any:
        self._begin = time.perf_counter()
        return self._class(self._compile)

    def __enter__(self) -> Captured:
        self._prior = engine.set_autograd_compiler(self._new, self._dynamic)
        torchs.compiled_autograd_enabled = True
        torch.autograd.set_multithreading_enabled(False).__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        torchs.compiled_autograd_enabled = False
        engine.set_autograd_compiler(*self._prior)


def measure(
    name: str, compile_forward: bool, rounds: int, args: Any
) -> dict[str, dict[str, float]]:
    case = zoo.build(name)
    parameters = list(case.model.parameters())
    forward: Any = case.model
    if compile_forward:
        forward = torch.compile(case.model, backend="aot_eager", dynamic=args.dynamic)

    def loss() -> Tensor:
        torch.manual_seed(0)
        return case.loss(forward(**case.inputs))

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    loss().backward()  # compile the forward, allocate what stays
    figures: dict[str, dict[str, list[float]]] = {who: {} for who in CLASSES}

    def note(who: str, what: str, value: float) -> None:
        figures[who].setdefault(what, []).append(value)

    def backward_s(prepared: Tensor) -> float:
        begin = time.perf_counter()
        prepared.backward()
        return time.perf_counter() - begin

    for accumulate in (False, True):
        for who in CLASSES:
            engine.clear_cache()
            seen: list[int] = []

            def run_it(graph: Any, seen: list[int] = seen) -> Any:
                def run(*arguments: Any) -> Any:
                    seen.append(peak_of(graph, arguments, parameters))
                    return []

                return run

            clear()
            if accumulate:
                loss().backward()
            with Captured(who, run_it, args.dynamic) as captured:
                loss().backward()
            note(who, "peak, adding (B)" if accumulate else "peak (B)", seen[0])
            if not accumulate:
                note(who, "nodes", len(captured.graph.graph.nodes))
    for _ in range(rounds):
        for who in CLASSES:
            engine.clear_cache()
            clear()
            with Captured(who, lambda graph: lambda *a: [], args.dynamic) as captured:
                backward_s(loss())
                note(who, "capture (ms)", captured.capture_s * 1e3)
                for _ in range(5):
                    note(who, "fixed (ms)", backward_s(loss()) * 1e3)
    if args.steady:
        graphs: dict[str, Any] = {}
        for who in CLASSES:
            torch._dynamo.reset()
            forward = case.model
            if compile_forward:
                forward = torch.compile(case.model, backend="aot_eager", dynamic=args.dynamic)
            engine.clear_cache()
            compiler = functools.partial(torch.compile, backend="aot_eager", dynamic=args.dynamic)
            with Captured(who, compiler, args.dynamic) as captured:
                for i in range(4 + 2 * rounds):
                    clear()
                    took = backward_s(loss())
                    if i >= 4:
                        note(who, "steady (ms)", took * 1e3)
            graphs[who] = captured.graph
    clear()
    return {
        what: {who: statistics.median(figures[who][what]) for who in CLASSES}
        for what in figures["torch"]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gpt2,bert,resnet")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--steady", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    print(f"{'model':8} {'forward':9} {'measure':17} {'torch':>12} {'memprof':>12} {'ratio':>7}")
    for name in args.models.split(","):
        for compile_forward in (False, True):
            for what, values in measure(name, compile_forward, args.rounds, args).items():
                ratio = values["memprof"] / values["torch"]
                print(
                    f"{name:8} {'compiled' if compile_forward else 'plain':9} {what:17} "
                    f"{values['torch']:12,.3f} {values['memprof']:12,.3f} {ratio:7.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

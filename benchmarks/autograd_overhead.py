"""memprof's compiled autograd beside torch's own, in one run: `make bench-autograd`.

For each model and forward (plain, compiled), medians of

* captured nodes;
* capture: from the engine's first call to the graph that the compiler gets;
* fixed: a whole backward through the engine with a captured graph that does nothing;
* steady: a backward with the graph compiled by --backend;
* peak: bytes live at the worst moment of the captured graph, run node by node with real
  tensors, with no gradients before and with gradients to add to.

The two take turns from one backward to the next. Ratios are memprof / torch; lower is better.
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


class Harness:
    """Captures the same backward with both classes and runs either capture.

    The engine caches one captured graph, so what it caches is a switch between the two:
    consecutive backwards can take turns, and differ in nothing else.

    Args:
        compiler: what both graphs are compiled with.
    """

    def __init__(self, compiler: Callable[[Any], Any], dynamic: bool) -> None:
        self.graphs: dict[str, Any] = {}
        self.capture_s: dict[str, float] = {}
        self.who = ""
        self._compiler, self._dynamic = compiler, dynamic
        self._pairs: dict[str, tuple[Any, Any]] = {}
        self._begin = 0.0

    def __enter__(self) -> Harness:
        self._prior = engine.set_autograd_compiler(self._new, self._dynamic)
        torchs.compiled_autograd_enabled = True
        torch.autograd.set_multithreading_enabled(False)
        return self

    def __exit__(self, *_: object) -> None:
        torchs.compiled_autograd_enabled = False
        engine.set_autograd_compiler(*self._prior)
        engine.clear_cache()

    def capture(self, who: str, step: Callable[[], Any]) -> None:
        """Capture the backward of ``step`` with that class, whatever was captured before."""
        engine.clear_cache()
        self.who = who
        step()

    def _new(self) -> Any:
        self._begin = time.perf_counter()
        instance = CLASSES[self.who](self._compile)
        end_capture = instance.end_capture

        def end(outputs: Any) -> tuple[Any, Any]:
            self._pairs[self.who] = end_capture(outputs)
            return self._run, self._compiler

        instance.end_capture = end
        return instance

    def _compile(self, graph: Any) -> Any:
        self.capture_s[self.who] = time.perf_counter() - self._begin
        self.graphs[self.who] = graph
        return self._compiler(graph)

    def _run(self, _: Any, *arguments: Any) -> Any:
        wrapper, compiled = self._pairs[self.who]
        return wrapper(compiled, *arguments)


def measure(
    name: str, compile_forward: bool, rounds: int, args: Any
) -> dict[str, dict[str, float]]:
    case = zoo.build(name)
    parameters = list(case.model.parameters())
    forward: Any = case.model
    if compile_forward:
        forward = torch.compile(case.model, backend="aot_eager", dynamic=args.dynamic)
    figures: dict[str, dict[str, list[float]]] = {who: {} for who in CLASSES}

    def note(who: str, what: str, value: float) -> None:
        figures[who].setdefault(what, []).append(value)

    def loss() -> Tensor:
        torch.manual_seed(0)
        return case.loss(forward(**case.inputs))

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    def step() -> float:
        clear()
        prepared = loss()
        begin = time.perf_counter()
        prepared.backward()
        return time.perf_counter() - begin

    step()  # compile the forward, allocate what stays
    for accumulate in (False, True):
        for who in CLASSES:
            seen: list[int] = []

            def run_it(graph: Any, seen: list[int] = seen) -> Any:
                def run(*arguments: Any) -> Any:
                    seen.append(peak_of(graph, arguments, parameters))
                    return []

                return run

            clear()
            if accumulate:
                loss().backward()
            with Harness(run_it, args.dynamic) as harness:
                harness.capture(who, lambda: loss().backward())
            note(who, "peak, adding (B)" if accumulate else "peak (B)", seen[0])
            if not accumulate:
                note(who, "nodes", len(harness.graphs[who].graph.nodes))
    with Harness(lambda graph: lambda *a: [], args.dynamic) as harness:
        for _ in range(rounds):
            for who in CLASSES:
                harness.capture(who, step)
                note(who, "capture (ms)", harness.capture_s[who] * 1e3)
        for i in range(40 * rounds):
            for harness.who in sorted(CLASSES, reverse=bool(i % 2)):
                note(harness.who, "fixed (ms)", step() * 1e3)
    if args.steady:
        compiler = functools.partial(torch.compile, backend=args.backend, dynamic=args.dynamic)
        with Harness(compiler, args.dynamic) as harness:
            for who in CLASSES:
                harness.capture(who, step)
            for i in range(3 + 10 * rounds):
                for harness.who in sorted(CLASSES, reverse=bool(i % 2)):
                    took = step()
                    if i >= 3:
                        note(harness.who, "steady (ms)", took * 1e3)
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
    parser.add_argument("--backend", default="aot_eager")
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

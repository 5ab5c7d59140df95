"""memprof's compiled autograd beside torch's own, in one run: `make bench-autograd [ARGS=--quick]`.

For each model and forward (plain, compiled), medians of

* captured nodes;
* capture: from the engine's first call to the graph that the compiler gets;
* fixed: a whole backward through the engine with a captured graph that does nothing;
* steady: a backward with the graph compiled by each of --backends ("eager" runs it as
  Dynamo traced it); a compiled forward is compiled by the same one;
* peak: bytes live at the worst moment of the captured graph, run node by node with real
  tensors, with no gradients before and with gradients to add to.

The two take turns from one backward to the next. Ratios are memprof / torch; lower is better.
--cpu-time counts the CPU time of the thread that runs the backward, which on a busy machine
and with OMP_NUM_THREADS=1 says more than the clock on the wall. --save writes
out/results/compiled_autograd.json.

Compiled code goes into a folder that is removed at the end, unless TORCHINDUCTOR_CACHE_DIR
names one: in a shared cache, a run that was killed leaves truncated files.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "test"))
import torch._dynamo.compiled_autograd as torchs
from backend_overhead import machine
from compiled_autograd.support import peak_of
from lines import Lines, results, write_json
from models import zoo

from memprof import compiled_autograd as ours

RESULTS = results("compiled_autograd.json")
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


class Training:
    """A model of the zoo, and one backward of it at a time.

    Args:
        backend: what compiles the forward; None runs it plain.
        clock: seconds.
    """

    def __init__(
        self, name: str, backend: str | None, dynamic: bool, clock: Callable[[], float]
    ) -> None:
        torch._dynamo.reset()
        self._case = zoo.build(name)
        self._clock = clock
        self.parameters = list(self._case.model.parameters())
        self._forward: Any = self._case.model
        if backend is not None:
            self._forward = torch.compile(self._case.model, backend=backend, dynamic=dynamic)
        self.step()  # compile the forward, allocate what stays

    def loss(self) -> Tensor:
        torch.manual_seed(0)
        return self._case.loss(self._forward(**self._case.inputs))

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> float:
        """Seconds of a backward without gradients until now."""
        self.clear()
        prepared = self.loss()
        begin = self._clock()
        prepared.backward()
        return self._clock() - begin


class Figures:
    """Medians of what both were measured at."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {}

    def note(self, who: str, what: str, value: float) -> None:
        self._values.setdefault(what, {}).setdefault(who, []).append(value)

    def medians(self) -> dict[str, dict[str, float]]:
        return {
            what: {who: statistics.median(values) for who, values in both.items()}
            for what, both in self._values.items()
        }


def capture_and_peak(training: Training, figures: Figures, rounds: int, dynamic: bool) -> None:
    """Nodes, peaks, time to capture, and what a captured backward costs that does nothing."""
    for accumulate in (False, True):
        for who in CLASSES:
            seen: list[int] = []

            def run_it(graph: Any, seen: list[int] = seen) -> Any:
                def run(*arguments: Any) -> Any:
                    seen.append(peak_of(graph, arguments, training.parameters))
                    return []

                return run

            training.clear()
            if accumulate:
                training.loss().backward()
            with Harness(run_it, dynamic) as harness:
                harness.capture(who, lambda: training.loss().backward())
            figures.note(who, "peak, adding (B)" if accumulate else "peak (B)", seen[0])
            if not accumulate:
                figures.note(who, "nodes", len(harness.graphs[who].graph.nodes))
    with Harness(lambda graph: lambda *a: [], dynamic) as harness:
        for _ in range(rounds):
            for who in CLASSES:
                harness.capture(who, training.step)
                figures.note(who, "capture (ms)", harness.capture_s[who] * 1e3)
        for i in range(40 * rounds):
            for harness.who in sorted(CLASSES, reverse=bool(i % 2)):
                figures.note(harness.who, "fixed (ms)", training.step() * 1e3)


def steady(training: Training, figures: Figures, backend: str, rounds: int, dynamic: bool) -> None:
    """A backward once everything is compiled."""
    compiler = functools.partial(torch.compile, backend=backend, dynamic=dynamic)
    with Harness(compiler, dynamic) as harness:
        for who in CLASSES:
            harness.capture(who, training.step)
        for i in range(3 + 10 * rounds):
            for harness.who in sorted(CLASSES, reverse=bool(i % 2)):
                took = training.step()
                if i >= 3:
                    figures.note(harness.who, f"steady, {backend} (ms)", took * 1e3)


def measure(name: str, compile_forward: bool, args: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Measures and the medians of both, as soon as they are known."""
    clock = time.thread_time if args.cpu_time else time.perf_counter
    if args.capture:
        figures = Figures()
        training = Training(name, "aot_eager" if compile_forward else None, args.dynamic, clock)
        capture_and_peak(training, figures, args.rounds, args.dynamic)
        yield from figures.medians().items()
    for backend in filter(None, args.backends.split(",")):
        figures = Figures()
        training = Training(name, backend if compile_forward else None, args.dynamic, clock)
        steady(training, figures, backend, args.rounds, args.dynamic)
        yield from figures.medians().items()


def main() -> None:
    args = parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        about = {**machine(), "threads": torch.get_num_threads()}
        results = run(args, about)
    if args.save:
        write(RESULTS, results, args, about)
        print(f"written to {RESULTS}")


def run(args: argparse.Namespace, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure and print; medians of both, one entry a model, forward and measure."""
    print(
        f"{about['cpu']}, {about['cores']} cores, torch {about['torch']}, "
        f"{about['threads']} threads, {args.rounds} rounds"
    )
    table = Lines(
        *(("model", -8), ("forward", -9), ("measure", -22), ("torch", 14), ("memprof", 14)),
        ("ratio", 7),
    )
    table.header()
    results = []
    for name in args.models.split(","):
        for forward in ("plain", "compiled"):
            for what, values in measure(name, forward == "compiled", args):
                ratio = values["memprof"] / values["torch"]
                results.append({"model": name, "forward": forward, "measure": what, **values})
                both = (f"{values['torch']:,.3f}", f"{values['memprof']:,.3f}")
                table.row([name, forward, what, *both, f"{ratio:.3f}"])
    return results


def write(
    out: Path, results: list[dict[str, Any]], args: argparse.Namespace, about: dict[str, Any]
) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "benchmark": "compiled_autograd",
        "machine": about,
        "rounds": args.rounds,
        "clock": "CPU time" if args.cpu_time else "wall",
        "dynamic": args.dynamic,
        "results": results,
    }
    write_json(content, out)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="gpt2, eager and aot_eager, 3 rounds")
    parser.add_argument("--models", help="gpt2,bert,resnet")
    parser.add_argument("--rounds", type=int, help="9")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--backends", help="eager,aot_eager,inductor")
    parser.add_argument("--capture", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    args = parser.parse_args()
    quick, full = (
        ("gpt2", 3, "eager,aot_eager"),
        ("gpt2,bert,resnet", 9, "eager,aot_eager,inductor"),
    )
    for option, value in zip(
        ("models", "rounds", "backends"), quick if args.quick else full, strict=True
    ):
        if getattr(args, option) is None:
            setattr(args, option, value)
    return args


if __name__ == "__main__":
    main()

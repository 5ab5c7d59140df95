"""What memprof costs, measured beside the inductor backend in the same run.

    python benchmarks/backend_overhead.py            # everything, a quarter of an hour
    python benchmarks/backend_overhead.py --quick    # one model, few rounds; writes no file
    python benchmarks/backend_overhead.py --only steady --models gpt2

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Steady state*: the same work is compiled three times in one process: by inductor, by memprof, and
by inductor again as a control, whose ratio to the first is 1 up to noise. Short blocks of calls of
the three alternate, in an order that rotates, with the garbage collector off and one torch thread;
each block is compared with the inductor block of its own round, and the medians over rounds are
printed. What drifts slower than a round (frequency, neighbours on the machine) falls out of the
comparison, and the control says what is left.

*Compile time*: a fresh process with fresh cache directories each time, inductor and memprof in
turn, from the call of ``torch.compile`` to the end of the first training step, child processes
included. That step is also where memprof observes.

CPU time is less noisy than wall time on a shared machine; wall time is what a user waits for.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
sys.path.insert(0, str(Path(__file__).parent))
from lines import Lines, results, write_json
from models import zoo

CONTENDERS = {"inductor": "inductor", "memprof": "memprof", "control": "inductor"}
MODELS = ("resnet", "gpt2", "llama")
RESULTS = results("backend_overhead.json")


@dataclass
class Steady:
    """Medians over rounds, nanoseconds a call; a difference or ratio is to inductor's block of
    the same round."""

    work: str
    contender: str
    wall_ns: float
    cpu_ns: float
    wall_ratio: float
    cpu_ratio: float
    wall_added_ns: float
    cpu_added_ns: float


@dataclass
class Compile:
    """Medians over processes, seconds; the ratio is the median over pairs."""

    work: str
    contender: str
    wall_s: float
    cpu_s: float
    wall_ratio: float
    cpu_ratio: float


def main() -> None:
    args = parse_args()
    if args.compile_once:
        print(json.dumps(compile_once(args.compile_once, args.backend)))
        return
    torch.set_num_threads(1)
    m = machine()
    print(f"{m['cpu']}, {m['cores']} cores, torch {m['torch']}, Python {m['python']}", flush=True)
    steady: list[Steady] = []
    compiles: list[Compile] = []
    if args.only != "compile":
        print("\nSteady state, medians a call")
        STEADY.header()
        with tempfile.TemporaryDirectory(prefix="memprof-bench-") as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            works: dict[str, Callable[[str], Callable[[], object]]] = {
                "one op": one_op,
                "one op, training": one_op_training,
                **{f"{name}, training": training_step(name) for name in args.models},
            }
            for work, build in works.items():
                found = measure_steady(work, build, args.rounds)
                for s in found:
                    STEADY.row(cells_of_steady(s))
                steady += found
                write(args.out, steady, compiles, args)
    if args.only != "steady":
        print("\nFirst training step, compilation included, medians")
        COMPILE.header()
        for name in args.models:
            measured = measure_compile(name, args.compile_rounds)
            for c in measured:
                COMPILE.row(cells_of_compile(c))
            compiles += measured
            write(args.out, steady, compiles, args)
    if args.out is not None:
        print(f"written to {args.out}")


# Work: each builder compiles for one backend, warms up, and returns what one call is.


def one_op(backend: str) -> Callable[[], object]:
    """``x + 1`` on 16 elements, no autograd."""
    compiled = torch.compile(_fresh("def f(x):\n    return x + 1"), backend=backend)
    x = torch.zeros(16)
    return lambda: compiled(x)


def one_op_training(backend: str) -> Callable[[], object]:
    """``x * 2`` forward and backward: two compiled calls."""
    compiled = torch.compile(_fresh("def f(x):\n    return x * 2"), backend=backend)
    x = torch.zeros(16, requires_grad=True)
    gradient = torch.ones(16)
    return lambda: torch.autograd.grad(compiled(x), x, gradient)


def training_step(name: str) -> Callable[[str], Callable[[], object]]:
    """Forward and backward of a model of the test zoo."""

    def build(backend: str) -> Callable[[], object]:
        case = zoo.build(name)
        compiled = torch.compile(case.model, backend=backend)

        def step() -> None:
            case.loss(compiled(**case.inputs)).backward()
            case.model.zero_grad(set_to_none=True)

        return step

    return build


def _fresh(source: str) -> Callable[..., Any]:
    """A function with a code object of its own: Dynamo keeps one list of compiled versions for
    each code object, and a contender must not pay for walking past another's."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


# Measuring


def measure_steady(
    work: str, build: Callable[[str], Callable[[], object]], rounds: int
) -> list[Steady]:
    calls = {name: build(backend) for name, backend in CONTENDERS.items()}
    for call in calls.values():
        # Enough for Dynamo to settle and for memprof to finish observing.
        for _ in range(10):
            call()
    start = time.perf_counter()
    calls["inductor"]()
    # Blocks of about 20 ms: long against the clock, short against the machine's moods.
    length = max(5, int(0.02 / (time.perf_counter() - start)))
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            order.append(order.pop(0))
            for name in order:
                w, c = _block(calls[name], length)
                wall[name].append(w / length)
                cpu[name].append(c / length)
    finally:
        gc.enable()

    def ratio(times: dict[str, list[float]], name: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times["inductor"], strict=True))

    def added(times: dict[str, list[float]], name: str) -> float:
        return statistics.median(a - b for a, b in zip(times[name], times["inductor"], strict=True))

    return [
        Steady(
            work,
            name,
            statistics.median(wall[name]),
            statistics.median(cpu[name]),
            ratio(wall, name),
            ratio(cpu, name),
            added(wall, name),
            added(cpu, name),
        )
        for name in calls
    ]


def _block(call: Callable[[], object], length: int) -> tuple[int, int]:
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    for _ in range(length):
        call()
    return time.perf_counter_ns() - wall, time.process_time_ns() - cpu


def measure_compile(name: str, rounds: int) -> list[Compile]:
    times: dict[str, list[tuple[float, float]]] = {"inductor": [], "memprof": []}
    order = list(times)
    for _ in range(rounds):
        for backend in order:
            times[backend].append(_compile_in_fresh_process(name, backend))
        order.reverse()
    out = []
    for backend, taken in times.items():
        pairs = list(zip(taken, times["inductor"], strict=True))
        out.append(
            Compile(
                name,
                backend,
                statistics.median(wall for wall, _ in taken),
                statistics.median(cpu for _, cpu in taken),
                statistics.median(a[0] / b[0] for a, b in pairs),
                statistics.median(a[1] / b[1] for a, b in pairs),
            )
        )
    return out


def _compile_in_fresh_process(name: str, backend: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="memprof-bench-") as cache:
        done = subprocess.run(
            [sys.executable, __file__, "--compile-once", name, "--backend", backend],
            # One process compiles everything: worker processes would overlap in ways that
            # depend on what else the machine does.
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": cache,
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu


def compile_once(name: str, backend: str) -> tuple[float, float]:
    """Wall and CPU seconds of the first training step, children's included."""
    case = zoo.build(name)
    cpu, wall = _cpu_with_children(), time.perf_counter()
    compiled = torch.compile(case.model, backend=backend)
    case.loss(compiled(**case.inputs)).backward()
    return time.perf_counter() - wall, _cpu_with_children() - cpu


def _cpu_with_children() -> float:
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


# Showing


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


STEADY = Lines(
    *(("work", -18), ("backend", -8), ("wall µs", 10), ("CPU µs", 10), ("added wall", 10)),
    *(("added CPU", 10), ("wall ratio", 10), ("CPU ratio", 9)),
)
COMPILE = Lines(
    *(("model", -8), ("backend", -8), ("wall s", 7), ("CPU s", 7)),
    *(("wall ratio", 10), ("CPU ratio", 9)),
)


def cells_of_steady(s: Steady) -> list[str]:
    figures = (s.wall_ns, s.cpu_ns, s.wall_added_ns, s.cpu_added_ns)
    times = [f"{ns / 1e3:,.2f}" for ns in figures]
    return [s.work, s.contender, *times, f"{s.wall_ratio:.3f}", f"{s.cpu_ratio:.3f}"]


def cells_of_compile(c: Compile) -> list[str]:
    figures = [f"{c.wall_s:.2f}", f"{c.cpu_s:.2f}", f"{c.wall_ratio:.3f}", f"{c.cpu_ratio:.3f}"]
    return [c.work, c.contender, *figures]


def write(
    out: Path | None, steady: list[Steady], compiles: list[Compile], args: argparse.Namespace
) -> None:
    content = {
        "benchmark": "backend_overhead",
        "machine": machine(),
        "rounds": args.rounds,
        "compile_rounds": args.compile_rounds,
        "steady": [asdict(s) for s in steady],
        "compile": [asdict(c) for c in compiles],
    }
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(content, out)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("steady", "compile"), help="one half of it")
    parser.add_argument("--quick", action="store_true", help="gpt2, 30 rounds, one process each")
    parser.add_argument("--models", nargs="*", choices=tuple(zoo.MODELS))
    parser.add_argument("--rounds", type=int, help="rounds of blocks (200)")
    parser.add_argument("--compile-rounds", type=int, help="processes each (3)")
    parser.add_argument("--out", type=Path, help=f"file to write ({RESULTS}; --quick: none)")
    parser.add_argument("--compile-once", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="memprof", help=argparse.SUPPRESS)
    args = parser.parse_args()
    full = (MODELS, 200, 3, RESULTS)
    for name, value in zip(
        ("models", "rounds", "compile_rounds", "out"),
        (("gpt2",), 30, 1, None) if args.quick else full,
        strict=True,
    ):
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


if __name__ == "__main__":
    main()

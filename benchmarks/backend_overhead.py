"""What memprof costs, measured beside the inductor backend in the same run.

    python benchmarks/backend_overhead.py            # everything, some minutes
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
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
from models import zoo

CONTENDERS = {"inductor": "inductor", "memprof": "memprof", "control": "inductor"}
MODELS = ("resnet", "gpt2", "llama")


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
    console = Console(width=max(110, Console().width))
    steady: list[Steady] = []
    compiles: list[Compile] = []
    if args.only != "compile":
        with tempfile.TemporaryDirectory(prefix="memprof-bench-") as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            works: dict[str, Callable[[str], Callable[[], object]]] = {
                "one op": one_op,
                "one op, training": one_op_training,
                **{f"{name}, training": training_step(name) for name in args.models},
            }
            for work, build in works.items():
                console.print(f"steady state: {work} ...", style="dim")
                steady += measure_steady(work, build, args.rounds)
                write(args.out, steady, compiles, args)
    if args.only != "steady":
        for name in args.models:
            console.print(f"compile time: {name} ...", style="dim")
            compiles += measure_compile(name, args.compile_rounds)
            write(args.out, steady, compiles, args)
    show(console, steady, compiles)
    console.print(f"written to {args.out}")


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


def show(console: Console, steady: list[Steady], compiles: list[Compile]) -> None:
    m = machine()
    about = f"{m['cpu']}, {m['cores']} cores, torch {m['torch']}, Python {m['python']}"
    if steady:
        table = Table(title=f"Steady state, medians a call\n{about}")
        for column in ("work", "backend"):
            table.add_column(column)
        for column in (
            "wall µs",
            "CPU µs",
            "added wall µs",
            "added CPU µs",
            "wall ratio",
            "CPU ratio",
        ):
            table.add_column(column, justify="right")
        for s in steady:
            figures = (s.wall_ns, s.cpu_ns, s.wall_added_ns, s.cpu_added_ns)
            table.add_row(
                s.work,
                s.contender,
                *(f"{ns / 1e3:,.2f}" for ns in figures),
                f"{s.wall_ratio:.3f}",
                f"{s.cpu_ratio:.3f}",
                end_section=s.contender == "control",
            )
        console.print(table)
    if compiles:
        table = Table(title=f"First training step, compilation included, medians\n{about}")
        for column in ("model", "backend"):
            table.add_column(column)
        for column in ("wall s", "CPU s", "wall ratio", "CPU ratio"):
            table.add_column(column, justify="right")
        for c in compiles:
            table.add_row(
                c.work,
                c.contender,
                f"{c.wall_s:.2f}",
                f"{c.cpu_s:.2f}",
                f"{c.wall_ratio:.3f}",
                f"{c.cpu_ratio:.3f}",
                end_section=c.contender == "memprof",
            )
        console.print(table)


def write(
    out: Path, steady: list[Steady], compiles: list[Compile], args: argparse.Namespace
) -> None:
    content = {
        "benchmark": "backend_overhead",
        "machine": machine(),
        "rounds": args.rounds,
        "compile_rounds": args.compile_rounds,
        "steady": [asdict(s) for s in steady],
        "compile": [asdict(c) for c in compiles],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("steady", "compile"), help="one half of it")
    parser.add_argument("--models", nargs="*", choices=tuple(zoo.MODELS), default=MODELS)
    parser.add_argument("--rounds", type=int, default=200, help="rounds of blocks (200)")
    parser.add_argument("--compile-rounds", type=int, default=3, help="processes each (3)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results" / "backend_overhead.json",
        help="file to write (benchmarks/results/backend_overhead.json)",
    )
    parser.add_argument("--compile-once", help=argparse.SUPPRESS)
    parser.add_argument("--backend", default="memprof", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

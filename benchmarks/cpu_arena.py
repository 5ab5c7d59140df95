"""Compiled CPU code in memprof's arena, beside inductor on glibc and on tcmalloc.

    python benchmarks/cpu_arena.py                   # everything, some minutes
    python benchmarks/cpu_arena.py --quick           # three cases, few rounds; writes no file
    python benchmarks/cpu_arena.py --cases softmax-64 mlp-64-training --rounds 10

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
One worker process has glibc's malloc and runs inductor, memprof, and inductor a second time
as a control; another has tcmalloc preloaded and runs inductor. All have one torch thread and
compile the same work. The parent asks them for one block of calls after another, the order
rotating, and nobody computes while another does. Each block is compared with its own
round's; printed are medians over rounds. What drifts slower than a round falls out, and the
control says what is left.

*Equal* is bit by bit: outputs, and gradients where there are any, of memprof against
inductor. *Pool* is what the arena has from the system; *live peak* the most bytes that the
observed programs of the work have live in planned buffers at one instant, the least that
any allocator could do with.
"""

from __future__ import annotations

import argparse
import ctypes.util
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))
sys.path.insert(0, str(Path(__file__).parent))
from backend_overhead import machine
from lines import Lines
from models import zoo

Step = Callable[[], list[torch.Tensor]]
MEGA = 1 << 20


# Work: each builder compiles for one backend and returns a step; the step returns what it
# computed. The same seed gives the same values for each backend.


def softmax_chain(mb: int) -> Callable[[str], Step]:
    """Each step reads its input twice, by rows and by columns, so it is materialised."""

    def build(backend: str) -> Step:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = torch.softmax(x, -1) * 2 + x.sum(0)
            return x

        compiled = torch.compile(_own_code(chain), backend=backend, dynamic=False)
        x = torch.randn(mb * MEGA // 4 // 1024, 1024)
        return lambda: [compiled(x)]

    return build


def softmax_training(mb: int) -> Callable[[str], Step]:
    """The same forward and backward."""

    def build(backend: str) -> Step:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = torch.softmax(x, -1) * 2 + x.sum(0)
            return x

        compiled = torch.compile(_own_code(chain), backend=backend, dynamic=False)
        x = torch.randn(mb * MEGA // 4 // 1024, 1024, requires_grad=True)
        gradient = torch.randn_like(x)

        def step() -> list[torch.Tensor]:
            y = compiled(x)
            return [y.detach(), *torch.autograd.grad(y, x, gradient)]

        return step

    return build


def thin_mlp(mb: int, loss: str | None) -> Callable[[str], Step]:
    """Linear 16 → 16 and GELU, four times, with so many rows that an activation has ``mb`` MiB.

    Args:
        mb: MiB.
        loss: None for inference. ``compiled`` with the model, or ``eager``: then autograd
            makes the gradient of the model's output, one more large tensor a step, outside
            of what is compiled and so outside of the arena.
    """

    def build(backend: str) -> Step:
        layers = [m for _ in range(4) for m in (torch.nn.Linear(16, 16), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers)
        whole = Loss(model) if loss == "compiled" else model
        compiled = torch.compile(whole, backend=backend, dynamic=False)
        x = torch.randn(mb * MEGA // 4 // 16, 16)

        def infer() -> list[torch.Tensor]:
            with torch.no_grad():
                return [compiled(x)]

        def train() -> list[torch.Tensor]:
            compiled(x).sum().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            model.zero_grad(set_to_none=True)
            return gradients

        return infer if loss is None else train

    return build


class Loss(torch.nn.Module):
    """A model and its loss."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(x).square().mean()
        return result


def zoo_training(name: str) -> Callable[[str], Step]:
    """Forward and backward of a model of the test zoo."""

    def build(backend: str) -> Step:
        case = zoo.build(name)
        compiled = torch.compile(case.model, backend=backend)

        def step() -> list[torch.Tensor]:
            torch.manual_seed(0)
            case.loss(compiled(**case.inputs)).backward()
            gradients = [p.grad for p in case.model.parameters() if p.grad is not None]
            case.model.zero_grad(set_to_none=True)
            return gradients

        return step

    return build


def _own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy with a code object of its own: Dynamo keeps compiled versions by code object."""
    import types

    f: Any = function
    return types.FunctionType(f.__code__.replace(), f.__globals__, None, None, f.__closure__)


CASES: dict[str, Callable[[str], Step]] = {
    "softmax-4": softmax_chain(4),
    "softmax-16": softmax_chain(16),
    "softmax-64": softmax_chain(64),
    "softmax-64-training": softmax_training(64),
    "mlp-64": thin_mlp(64, loss=None),
    "mlp-64-training": thin_mlp(64, loss="compiled"),
    "mlp-64-training-eager-loss": thin_mlp(64, loss="eager"),
    **{f"{name}-training": zoo_training(name) for name in ("resnet", "gpt2", "llama")},
}
QUICK = ["softmax-4", "softmax-64", "mlp-64-training"]
RESULTS = Path(__file__).parent / "results" / "cpu_arena.json"


# The worker: builds a case for its contenders, then runs blocks on request.


def work(case: str, contenders: list[str]) -> None:
    torch.set_num_threads(1)
    steps: dict[str, Step] = {}
    for contender in contenders:
        torch.manual_seed(0)
        steps[contender] = CASES[case]("memprof" if contender == "memprof" else "inductor")
    equal = None
    for i in range(12):
        torch.manual_seed(i)
        expected = steps["inductor"]()
        if "memprof" in steps:
            torch.manual_seed(i)
            got = steps["memprof"]()
            same = all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
            equal = same and equal is not False
            del got
        del expected
    for step in steps.values():
        step()
    gc.collect()
    gc.disable()
    print(json.dumps({"equal": equal, "arena": _arena()}), flush=True)
    for line in sys.stdin:
        contender, length = line.split()
        step, cpu, wall = steps[contender], time.process_time_ns(), time.perf_counter_ns()
        for _ in range(int(length)):
            step()
        took = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
        print(json.dumps(took), flush=True)


def _arena() -> dict[str, Any]:
    if "memprof.compile_backend.runtime" not in sys.modules:
        return {}
    from memprof.compile_backend.cpu_arena.tensors import POOL
    from memprof.compile_backend.runtime import RUNTIME
    from memprof.profiler.model import LedgerKind

    wanted = (LedgerKind.RECORD, LedgerKind.NOT_GRAPHED, LedgerKind.FALLBACK)
    entries = RUNTIME.ledger.entries_since({})
    return {
        "reserved": POOL.reserved_bytes,
        "ledger": [f"{e.kind.value}: {e.reason}" for e in entries if e.kind in wanted],
    }


class Worker:
    """A process that runs blocks of one case under one allocator."""

    def __init__(self, case: str, contenders: list[str], preload: str | None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if preload is not None:
            environment["LD_PRELOAD"] = preload
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", case, *contenders],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise RuntimeError(f"a worker ended with status {self.process.wait()}")

    def block(self, contender: str, length: int) -> tuple[float, float]:
        """Wall and CPU nanoseconds a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{contender} {length}\n")
        self.process.stdin.flush()
        wall, cpu = self._read()
        return wall / length, cpu / length

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Result:
    """Medians over rounds; ratios are of memprof's (the control's) block to the named one of
    the same round."""

    case: str
    equal: bool
    inductor_ms: float
    memprof_ms: float
    tcmalloc_ms: float | None
    wall_ratio: float
    cpu_ratio: float
    control_wall_ratio: float
    control_cpu_ratio: float
    to_tcmalloc_wall: float | None
    to_tcmalloc_cpu: float | None
    reserved_bytes: int
    ledger: list[str]


def measure(case: str, rounds: int, tcmalloc: str | None) -> Result:
    glibc = Worker(case, ["inductor", "memprof", "control"], None)
    other = Worker(case, ["inductor"], tcmalloc) if tcmalloc else None
    runs: list[tuple[str, Worker, str]] = [
        (name, glibc, name) for name in ("inductor", "memprof", "control")
    ]
    if other is not None:
        runs.append(("tcmalloc", other, "inductor"))
    wall, _ = glibc.block("inductor", 1)
    length = max(1, int(50e6 / wall))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in runs}
    for _ in range(rounds):
        runs.append(runs.pop(0))
        for name, worker, contender in runs:
            times[name].append(worker.block(contender, length))
    glibc.close()
    if other is not None:
        other.close()

    def ratio(a: str, b: str, which: int) -> float | None:
        if a not in times or b not in times:
            return None
        pairs = zip(times[a], times[b], strict=True)
        return statistics.median(x[which] / y[which] for x, y in pairs)

    def ms(name: str) -> float | None:
        return statistics.median(t[0] for t in times[name]) / 1e6 if name in times else None

    return Result(
        case,
        bool(glibc.about["equal"]),
        ms("inductor") or 0.0,
        ms("memprof") or 0.0,
        ms("tcmalloc"),
        ratio("memprof", "inductor", 0) or 0.0,
        ratio("memprof", "inductor", 1) or 0.0,
        ratio("control", "inductor", 0) or 0.0,
        ratio("control", "inductor", 1) or 0.0,
        ratio("memprof", "tcmalloc", 0),
        ratio("memprof", "tcmalloc", 1),
        glibc.about["arena"].get("reserved", 0),
        glibc.about["arena"].get("ledger", []),
    )


def find_tcmalloc() -> str | None:
    """Name of the library to preload, None if there is none."""
    return ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")


def main() -> None:
    args = parse_args()
    if args.work:
        work(args.work[0], args.work[1:])
        return
    m = machine()
    print(f"{m['cpu']}, {m['cores']} cores, torch {m['torch']}, load {m['load_average']:.1f}")
    tcmalloc = find_tcmalloc()
    if tcmalloc is None:
        print("no tcmalloc here (on Debian: libtcmalloc-minimal4); left out")
    TABLE.header()
    results = []
    for case in args.cases:
        results.append(measure(case, args.rounds, tcmalloc))
        TABLE.row(cells(results[-1]))
        for line in results[-1].ledger if args.ledger else []:
            print(f"  {line}", flush=True)
        if args.out is not None:
            write(args.out, results, args.rounds)
    if args.out is not None:
        print(f"written to {args.out}")


def write(out: Path, results: list[Result], rounds: int) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "benchmark": "cpu_arena",
        "machine": machine(),
        "rounds": rounds,
        "results": [asdict(r) for r in results],
    }
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


TABLE = Lines(
    *(("case", -26), ("equal", -5), ("inductor ms", 11), ("memprof ms", 10), ("tcmalloc ms", 11)),
    *(("wall / inductor", 15), ("CPU", 6), ("control", 7), ("wall / tcmalloc", 15), ("CPU", 6)),
    ("pool MiB", 8),
)


def cells(r: Result) -> list[str]:
    """One line."""

    def text(figure: float | None, digits: int) -> str:
        return "-" if figure is None else f"{figure:.{digits}f}"

    times = [text(t, 2) for t in (r.inductor_ms, r.memprof_ms, r.tcmalloc_ms)]
    ratios = [
        text(f, 3)
        for f in (
            *(r.wall_ratio, r.cpu_ratio, r.control_wall_ratio),
            *(r.to_tcmalloc_wall, r.to_tcmalloc_cpu),
        )
    ]
    return [r.case, "yes" if r.equal else "NO", *times, *ratios, text(r.reserved_bytes / MEGA, 1)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)}; 6 rounds")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES))
    parser.add_argument("--rounds", type=int, help="rounds of blocks (20)")
    parser.add_argument("--out", type=Path, help=f"file to write ({RESULTS}; --quick: none)")
    parser.add_argument("--ledger", action="store_true", help="print what went into the arena")
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.cases = args.cases or (QUICK if args.quick else list(CASES))
    args.rounds = args.rounds or (6 if args.quick else 20)
    if args.out is None and not args.quick:
        args.out = RESULTS
    return args


if __name__ == "__main__":
    main()

"""Graph trees on a CUDA device: memprof beside ``mode="reduce-overhead"`` on the zoo's models.

    make bench-gpu

For each model two copies of it train from the same bits, one under ``backend="memprof"``, one
under ``mode="reduce-overhead"``, and a third under ``mode="reduce-overhead"`` again, which says
what two runs of the same thing differ by. Compared are

* the values: losses and gradients of ten steps, replays included, dropout drawn from one seed;
* the time of a step (forward, backward, ``zero_grad``), medians of blocks of steps taken by turns,
  the device synchronised around each block;
* the bytes that the pool of the graphs has reserved, each with a device to itself.

On the simulated device (see CONTRIBUTING.md) it runs too; its times mean nothing then.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

import torch
from models import zoo
from rich.console import Console
from rich.table import Table
from torch import Tensor

from memprof.cudagraph_trees.container import reset_cudagraph_trees

RESULTS = Path(__file__).parent / "results" / "trees_gpu.json"
CONTENDERS: dict[str, dict[str, Any]] = {
    "memprof": {"backend": "memprof"},
    "torch": {"mode": "reduce-overhead"},
    "torch again": {"mode": "reduce-overhead"},
}
STEPS = 10


class Training:
    """One copy of a model with what it is fed."""

    def __init__(self, name: str, how: dict[str, Any]) -> None:
        self.case = zoo.build(name)
        if hasattr(self.case.model, "config"):
            # Left to itself, transformers decides at the first call and Dynamo compiles twice.
            self.case.model.config.problem_type = "single_label_classification"
        self.model = self.case.model.cuda()
        self.inputs = {k: v.cuda() for k, v in self.case.inputs.items()}
        # Dynamo keeps compiled code by code object: each copy gets its own.
        self.compiled: Callable[[], Any] = torch.compile(_own_code(self._forward), **how)

    def _forward(self) -> Any:
        return self.model(**self.inputs)

    def step(self) -> Tensor:
        self.model.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        loss = self.case.loss(self.compiled())
        loss.backward()
        return loss

    def values(self) -> list[Tensor]:
        """Losses and gradients of the first steps, dropout from one seed."""
        torch.manual_seed(5)
        out = []
        for _ in range(STEPS):
            out.append(self.step().detach().cpu())
            out += [p.grad.cpu() for p in self.model.parameters() if p.grad is not None]
            with torch.no_grad():
                for p in self.model.parameters():
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=0.02)
        return out


_numbers = iter(range(1, 1 << 30))


def _own_code(method: Any) -> Callable[[], Any]:
    code = method.__func__.__code__
    function = type(method.__func__)(
        code.replace(co_firstlineno=next(_numbers)), method.__func__.__globals__
    )
    bound: Callable[[], Any] = function.__get__(method.__self__)
    return bound


def pool_bytes() -> int:
    """Reserved by all private pools."""
    return sum(
        s["total_size"]
        for s in torch.cuda.memory_snapshot()
        if tuple(s["segment_pool_id"]) != (0, 0)
    )


def clear() -> None:
    torch._dynamo.reset()
    reset_cudagraph_trees()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    left = pool_bytes()
    assert left == 0, f"{left} bytes of a pool are left over from the contender before"


def pool_of(name: str, how: dict[str, Any]) -> int:
    """Alone on the device, after all kernels were tuned."""
    clear()
    training = Training(name, how)
    for _ in range(6):
        training.step()
    out = pool_bytes()
    del training
    clear()
    return out


def step_times(trainings: list[Training], rounds: int, block: int) -> list[list[float]]:
    """Milliseconds a step, of each by round; who goes first changes from round to round."""
    times: list[list[float]] = [[] for _ in trainings]
    for r in range(rounds):
        for k in range(len(trainings)):
            i = (r + k) % len(trainings)
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(block):
                trainings[i].step()
            torch.cuda.synchronize()
            times[i].append((time.perf_counter_ns() - begin) / block / 1e6)
    return times


def measure(name: str, rounds: int, block: int) -> dict[str, Any]:
    """All figures of one model."""
    clear()
    values = {}
    for contender, how in CONTENDERS.items():
        # A generation of its own for each: trees may overwrite what the last step returned.
        training = Training(name, how)
        values[contender] = training.values()
        del training
        clear()
    trainings = [Training(name, how) for how in CONTENDERS.values()]
    for training in trainings:
        for _ in range(STEPS):
            training.step()
    times = dict(zip(CONTENDERS, step_times(trainings, rounds, block), strict=True))
    del trainings, training
    pools = {c: pool_of(name, CONTENDERS[c]) for c in ("memprof", "torch")}

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    def difference(a: str, b: str) -> float:
        """The largest, in units of the largest element of its tensor."""
        return max(
            float((x - y).abs().max() / y.abs().max().clamp_min(1e-20))
            for x, y in zip(values[a], values[b], strict=True)
        )

    return {
        "model": name,
        "bitwise": all(map(torch.equal, values["memprof"], values["torch"])),
        "difference": difference("memprof", "torch"),
        "control_difference": difference("torch again", "torch"),
        "memprof_ms": statistics.median(times["memprof"]),
        "torch_ms": statistics.median(times["torch"]),
        "time_ratio": ratio("memprof", "torch"),
        "control_time_ratio": ratio("torch again", "torch"),
        "memprof_pool_bytes": pools["memprof"],
        "torch_pool_bytes": pools["torch"],
    }


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def _driver() -> str | None:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()[0].strip()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(zoo.MODELS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block", type=int, default=40, help="steps of one measurement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    # Each contender is a compilation of the same code.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    results = []
    for name in args.models.split(","):
        results.append(measure(name, args.rounds, args.block))
        sys.stderr.write(f"{json.dumps(results[-1])}\n")
    content = {"benchmark": "trees_gpu", "machine": machine(), "results": results}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    table = Table("model", "bitwise", "difference", "ms", "ratio", "pool, MiB", title=_title())
    for r in results:
        table.add_row(
            r["model"],
            "yes" if r["bitwise"] else "no",
            f"{r['difference']:.1e} (control {r['control_difference']:.1e})",
            f"{r['memprof_ms']:.3f} / {r['torch_ms']:.3f}",
            f"{r['time_ratio']:.3f} (control {r['control_time_ratio']:.3f})",
            f"{r['memprof_pool_bytes'] >> 20} / {r['torch_pool_bytes'] >> 20}",
        )
    Console().print(table)


def _title() -> str:
    return f"memprof / reduce-overhead, torch {torch.__version__}, {torch.cuda.get_device_name()}"


if __name__ == "__main__":
    main()

"""One workload under one backend on one size of device, in a process of its own.

    SIMGPU_MEM_MB=6000 simulated_cuda/run.sh python benchmarks/memory_worker.py NAME memprof

Prints one line of JSON, see ``Outcome``. The parent is ``device_memory.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

BACKENDS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "inductor": {"backend": "inductor"},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "memprof": {"backend": "memprof"},
}


@dataclass
class StepMemory:
    """Bytes of the device's default allocator around one step.

    Attributes:
        reserved_peak, allocated_peak: most within the step.
        reserved, allocated: after it.
        pools: of ``reserved``, what private pools have.
        launches: of CUDA graphs, in the step.
        seconds: on the host's clock, compilation included.
    """

    reserved_peak: int
    allocated_peak: int
    reserved: int
    allocated: int
    pools: int
    launches: int
    seconds: float


@dataclass
class Outcome:
    """What became of a run.

    Attributes:
        ended: ``ok``, ``out of memory`` or the name of another error.
        message: of the error, its first line.
        before: memory after the models were made, before the first step.
        steps: of each step that ended.
        reserved_peak, allocated_peak: most of the whole run, bytes, from the first call on.
        steady_reserved: most reserved in the last two steps, bytes.
        launches: of CUDA graphs in the last step.
        retries: allocations that succeeded after cached blocks had been given back.
        given_up: what memprof's ledger, or torch's counters, say was not made a graph.
    """

    workload: str
    backend: str
    torch: str
    ended: str = "ok"
    message: str = ""
    before: int = 0
    reserved_peak: int = 0
    allocated_peak: int = 0
    steady_reserved: int = 0
    launches: int = 0
    retries: int = 0
    steps: list[StepMemory] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)


def run(name: str, backend: str, most_layers: int | None) -> Outcome:
    import torch
    from memory_zoo import WORKLOADS, limit_layers

    # cuDNN is not simulated, and its attention would be the default.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    if most_layers is not None:
        limit_layers(most_layers)
    workload, how = WORKLOADS[name], BACKENDS[backend]
    outcome = Outcome(name, backend, torch.__version__)

    def compiler(function: Any) -> Any:
        if how is None:
            return function
        return torch.compile(function, dynamic=workload.dynamic, **how)

    try:
        step = workload.build(compiler)
        outcome.before = torch.cuda.memory_reserved()
        for i in range(workload.steps):
            outcome.steps.append(measured(step, i))
    except Exception as error:
        outcome.ended = "out of memory" if is_out_of_memory(error) else type(error).__name__
        outcome.message = next(iter(str(error).strip().splitlines()), "")
    peaks = [(s.reserved_peak, s.allocated_peak) for s in outcome.steps]
    peaks.append((torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()))
    outcome.reserved_peak, outcome.allocated_peak = map(max, zip(*peaks, strict=True))
    outcome.steady_reserved = max((s.reserved_peak for s in outcome.steps[-2:]), default=0)
    outcome.launches = outcome.steps[-1].launches if outcome.steps else 0
    outcome.retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    outcome.given_up = given_up(backend)
    return outcome


def measured(step: Any, number: int) -> StepMemory:
    import torch

    from memprof.simulated_cuda import control as simgpu

    launches, begin = simgpu.calls("cudaGraphLaunch"), time.perf_counter()
    torch.cuda.reset_peak_memory_stats()
    step(number)
    took = time.perf_counter() - begin
    return StepMemory(
        torch.cuda.max_memory_reserved(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(),
        torch.cuda.memory_allocated(),
        sum(
            segment["total_size"]
            for segment in torch.cuda.memory_snapshot()
            if tuple(segment["segment_pool_id"]) != (0, 0)
        ),
        simgpu.calls("cudaGraphLaunch") - launches,
        round(took, 3),
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the device's memory is why, in whatever library."""
    import torch

    while error is not None:
        text = str(error)
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text:
            return True
        if "ALLOC_FAILED" in text:  # cuBLAS
            return True
        error = error.__cause__ or error.__context__
    return False


def given_up(backend: str) -> list[str]:
    """Reasons, each with how often it was met."""
    if backend == "memprof":
        from proof.common import ledger

        found: list[str] = ledger()["given_up"]
        return found
    if backend == "reduce-overhead":
        from torch._dynamo.utils import counters

        skips = counters["inductor"]["cudagraph_skips"]
        return [f"cudagraph_skips ({skips})"] if skips else []
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload")
    parser.add_argument("backend", choices=tuple(BACKENDS))
    parser.add_argument("--layers", type=int, help="at most so many")
    parser.add_argument("--table", action="store_true", help="of the steps, for people")
    args = parser.parse_args()
    outcome = run(args.workload, args.backend, args.layers)
    if args.table:
        for line in in_words(outcome):
            print(line)
    else:
        print(json.dumps(asdict(outcome)), flush=True)


def in_words(outcome: Outcome) -> list[str]:
    """A table of the steps, MiB."""
    lines = [f"before the first step: {outcome.before >> 20} reserved"]
    lines.append(
        "step  peak reserved  allocated   after: reserved  allocated  in pools  launches  s"
    )
    for i, s in enumerate(outcome.steps):
        lines.append(
            f"{i:4} {s.reserved_peak >> 20:14,} {s.allocated_peak >> 20:10,} "
            f"{s.reserved >> 20:17,} {s.allocated >> 20:10,} {s.pools >> 20:9,} {s.launches:9}"
            f"  {s.seconds:.2f}"
        )
    lines.append(
        f"{outcome.ended} {outcome.message}; whole run: reserved {outcome.reserved_peak >> 20:,}, "
        f"allocated {outcome.allocated_peak >> 20:,}, {outcome.retries} retries"
    )
    return lines + outcome.given_up


if __name__ == "__main__":
    main()

"""Device memory of models at real sizes under memprof, inductor and ``mode="reduce-overhead"``.

    make bench-memory                                # all of workloads.py
    make bench-memory ARGS=--quick                   # under three minutes: few, with two layers
    make bench-memory ARGS='--workloads gpt2-training llama-training'

Needs the simulated device (simulated_cuda/README.md), whose kernels compute nothing here: what is
left of a step is its allocations, by torch's own allocator.

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every run is a process of its own; all share a compile cache. The first run of a workload and
backend has a device of 80 GiB. Of it are

* *reserved* and *allocated*: the most that the caching allocator had from the device, and had
  handed out, at any time from the first call on: compilation, warm-up, observation, recording.

Where the same step is smaller under another version of torch or with cuDNN, which is not simulated,
it is so for all backends.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from shared import Table, fresh, options, save

BACKENDS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "memprof": {"backend": "memprof"},
}
AMPLE_MIB = 81920
CONTEXT_MIB = 512
MIB = 1 << 20


def worker(name: str, backend: str, most_layers: int | None) -> dict[str, Any]:
    """Run a workload in this process.

    Returns:
        Bytes of torch's allocator (``reserved`` and ``allocated`` at their most), CUDA
        graphs launched in the last step, and the ``error`` that ended the run before its end.
    """
    import torch
    from workloads import WORKLOADS, prepare

    from memprof.simulated_cuda import control

    prepare(most_layers)
    workload = WORKLOADS[name]
    reserved: list[int] = []
    allocated: list[int] = []
    launches = 0
    found: dict[str, Any] = {}
    try:
        step = workload.build(
            lambda function: torch.compile(function, dynamic=False, **BACKENDS[backend])
        )
        for i in range(workload.steps):
            before = control.calls("cudaGraphLaunch")
            torch.cuda.reset_peak_memory_stats()
            step(i)
            reserved.append(torch.cuda.max_memory_reserved())
            allocated.append(torch.cuda.max_memory_allocated())
            launches = control.calls("cudaGraphLaunch") - before
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    found["reserved"] = max([*reserved, torch.cuda.max_memory_reserved()])
    found["allocated"] = max([*allocated, torch.cuda.max_memory_allocated()])
    found["launches"] = launches
    return found


def run(name: str, backend: str, layers: int | None, mib: int = AMPLE_MIB) -> dict[str, Any]:
    """What ``worker`` finds in a process of its own on a device of so many MiB."""
    return fresh(
        "--worker", name, backend, *([] if layers is None else ["--layers", str(layers)]),
        SIMGPU_MEM_MB=str(mib),
        SIMGPU_CONTEXT_MB=str(CONTEXT_MIB),
        SIMGPU_VALUES="0",
        OMP_NUM_THREADS="1",
        TORCHINDUCTOR_COMPILE_THREADS="1",
        HF_HUB_OFFLINE="1",
    )  # fmt: skip


def cells(found: dict[str, Any], others: list[dict[str, Any]]) -> list[object]:
    """One line of the table, sizes in MiB; memprof's has ratios to ``others``: of what is reserved
    to reduce-overhead's, since inductor keeps nothing between steps, or to inductor's where that
    fails."""
    names: list[object] = [found["workload"], found["backend"]]
    if "error" in found:
        return [*names, found["error"][:90]]
    ran = [o for o in others if "error" not in o]
    reserved: object = ""
    if ran and found["backend"] == "memprof":
        reserved = f"{found['reserved'] / ran[-1]['reserved']:.3f}"
    sizes = [-(-found[what] // MIB) for what in ("allocated", "reserved")]
    return [*names, *sizes, reserved]


def main() -> None:
    args = parse_args()
    if args.worker:
        print(json.dumps(worker(*args.worker, args.layers)))
        return
    from workloads import WORKLOADS

    names = args.workloads or [name for name, w in WORKLOADS.items() if w.quick or not args.quick]
    layers = 2 if args.quick and args.layers is None else args.layers
    for name in names:
        print(f"{name}: {WORKLOADS[name].about}")
    table = Table(
        {
            "workload": -22, "backend": -15, "allocated": 9, "reserved": 8, "ratio": 5,
        }
    )  # fmt: skip
    results = []
    for name in names:
        others: list[dict[str, Any]] = []
        for backend in BACKENDS:
            found = {"workload": name, "backend": backend, **run(name, backend, layers)}
            table.row(cells(found, others))
            others.append(found)
        results += others
        if args.save:
            save(results)


def parse_args() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--workloads", nargs="+", help="names of workloads.py (all)")
    parser.add_argument("--layers", type=int, help="at most so many layers (all)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

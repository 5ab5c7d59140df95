"""Device memory of models at real sizes under memprof, inductor and ``mode="reduce-overhead"``.

    make bench-memory                                # all of workloads.py
    make bench-memory ARGS=--quick                   # under three minutes: few, with two layers
    make bench-memory ARGS='--workloads gpt2-training llama-training --no-devices'

Needs the simulated device (simulated_cuda/README.md), whose kernels compute nothing here: what is
left of a step is its allocations, by torch's own allocator.

Note [How the figures are made]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every run is a process of its own; all share a compile cache. The first run of a workload and
backend has a device of 80 GiB. Of it are

* *reserved* and *allocated*: the most that the caching allocator had from the device, and had
  handed out, at any time from the first call on: compilation, warm-up, observation, recording;
*Runs on* is the smallest device on which all steps end without an error, found by bisection to 1 %;
it includes the 512 MiB that a CUDA context takes. That larger devices do as well as smaller ones is
assumed.

Where the same step is smaller under another version of torch or with cuDNN, which is not simulated,
it is so for all backends.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
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
TOLERANCE = 0.01


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


def smallest(runs: Callable[[int], bool], guess: int) -> int | None:
    """MiB of the smallest device that something runs on, which is tried itself, as is one that is
    smaller by ``TOLERANCE``; None if not even ``AMPLE_MIB`` is enough.

    Args:
        runs: whether it runs on so many MiB.
        guess: where the answer is expected, at most.
    """
    low, high = 0, guess
    while not runs(high):
        if high == AMPLE_MIB:
            return None
        low, high = high, min(AMPLE_MIB, high * 5 // 4)
    while high - low > max(1, TOLERANCE * low):
        middle = (low + high) // 2
        if runs(middle):
            high = middle
        else:
            low = middle
    return high


def measure(name: str, backend: str, layers: int | None, devices: bool) -> dict[str, Any]:
    """Run a workload on an ample device, then look for the smallest that it runs on."""
    found = run(name, backend, layers)
    if devices and "error" not in found:
        found["runs_on_mib"] = smallest(
            lambda mib: "error" not in run(name, backend, layers, mib),
            guess=found["reserved"] // MIB + CONTEXT_MIB,
        )
    return {"workload": name, "backend": backend, **found}


def cells(found: dict[str, Any], others: list[dict[str, Any]]) -> list[object]:
    """One line of the table, sizes in MiB; memprof's has ratios to ``others``: of what is reserved
    to reduce-overhead's, since inductor keeps nothing between steps, or to inductor's where that
    fails; of devices to the smallest."""
    names: list[object] = [found["workload"], found["backend"]]
    if "error" in found:
        return [*names, found["error"][:90]]
    ran = [o for o in others if "error" not in o]
    reserved: object = ""
    devices: object = ""
    if ran and found["backend"] == "memprof":
        reserved = f"{found['reserved'] / ran[-1]['reserved']:.3f}"
        smallest_of_others = min(o.get("runs_on_mib") or AMPLE_MIB for o in ran)
        if found.get("runs_on_mib"):
            devices = f"{found['runs_on_mib'] / smallest_of_others:.3f}"
    sizes = [-(-found[what] // MIB) for what in ("allocated", "reserved")]
    return [*names, *sizes, reserved, found.get("runs_on_mib", "-"), devices]


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
            "runs on": 7, "ratio ": 6,
        }
    )  # fmt: skip
    results = []
    for name in names:
        others: list[dict[str, Any]] = []
        for backend in BACKENDS:
            found = measure(name, backend, layers, args.devices)
            table.row(cells(found, others))
            others.append(found)
        results += others
        if args.save:
            save(results)


def parse_args() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--workloads", nargs="+", help="names of workloads.py (all)")
    parser.add_argument("--layers", type=int, help="at most so many layers (all)")
    parser.add_argument("--no-devices", dest="devices", action="store_false", help="peaks alone")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

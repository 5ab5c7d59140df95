"""How much of the device's memory the report of real models can name, and whether it adds up.

    make bench-account                                # every model, all ways, half an hour
    make bench-account ARGS=--quick                   # under three minutes: one, with two layers
    make bench-account ARGS='--workloads gpt2-training resnet50-training'

Each model is built and run inside of a session, on the simulated device (simulated_cuda/README.md),
whose kernels compute nothing: everything that decides about memory is torch's own. Each run is a
process of its own.

* ``plain``: ``backend="memprof"`` and ``memprof.profile()``: the peak is composed at the end of the
  session, from what compiled code had and what the process holds.
* ``eager=True``: the same with ``memprof.profile(eager=True)``: the allocator's history.
* ``uncompiled``: the model as it is, ``memprof.profile(eager=True)``.

*Adds up* is whether the rows of the report's first table come to the allocator's own counter of
the most reserved, to the byte. *Named* is the share of the bytes that were allocated at the peak
whose row says what they are for; *one row* the share that is one row of eager tensors, of which
``plain`` knows no more; *line* the share of all whose row has a line of the program.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from shared import Table, fresh, options, save

WAYS = ("plain", "eager=True", "uncompiled")


def worker(name: str, way: str, most_layers: int | None) -> dict[str, Any]:
    """Run a workload in this process, all of it inside of a session, and return the bytes of its
    report: ``counter`` of the allocator, ``total`` of the rows, and of those ``allocated`` what is
    ``unnamed``, ``one_row`` of eager tensors, or ``lineless``."""
    import torch
    from workloads import WORKLOADS, prepare

    import memprof

    prepare(most_layers)
    workload = WORKLOADS[name]

    def compiler(function: Any) -> Any:
        if way == "uncompiled":
            return function
        return torch.compile(function, dynamic=False, backend="memprof")

    with memprof.profile(eager=way != "plain") as session:
        step = workload.build(compiler)
        for i in range(workload.steps):
            step(i)
    counter = torch.cuda.max_memory_reserved()
    return {"counter": counter, **describe(session.profile())}


def describe(profile: Any) -> dict[str, Any]:
    """Bytes of the report's first table."""
    from memprof.profiler.model import Category
    from memprof.profiler.views.report.summary import summarize

    account = profile.accounts[0]
    if account.present:
        peak = summarize(profile).at_peak[0]
        named = sum(nbytes for _, nbytes in peak.parts)
        total = named + peak.eager + peak.rounding + peak.free + peak.unattributed
        return {
            "total": total,
            "allocated": total - peak.free,
            "unnamed": peak.unattributed,
            "one_row": peak.eager,
        }
    unnamed = sum(r.nbytes for r in account.rows if r.category is Category.UNKNOWN)
    return {
        "total": sum(nbytes for _, nbytes in account.parts()),
        "allocated": account.allocated,
        "unnamed": unnamed + max(0, account.unexplained),
        "one_row": 0,
        "lineless": sum(r.nbytes for r in account.rows if r.frame is None),
    }


def cells(name: str, way: str, found: dict[str, Any]) -> list[object]:
    """One line of the table."""
    if "error" in found:
        return [name, way, found["error"]]

    def share(nbytes: int) -> str:
        """Per cent of what was allocated, never rounded up to all of it."""
        return f"{int(10_000 * nbytes / max(1, found['allocated'])) / 100:.2f} %"

    off = found["total"] - found["counter"]
    return [
        name,
        way,
        f"{found['counter']:,}",
        f"off by {off:,}" if off else "exactly",
        share(found["allocated"] - found["unnamed"]),
        share(found["one_row"]),
        share(found["allocated"] - found["lineless"]) if "lineless" in found else "",
    ]


def main() -> None:
    args = parse_args()
    if args.worker:
        print(json.dumps(worker(*args.worker, args.layers)))
        return
    from workloads import WORKLOADS

    names = args.workloads or [
        name for name, w in WORKLOADS.items() if w.account and (w.quick or not args.quick)
    ]
    layers = 2 if args.quick and args.layers is None else args.layers
    limited = [] if layers is None else ["--layers", str(layers)]
    table = Table(
        {
            "workload": -24, "way": -10, "reserved, B": 16, "adds up": 16, "named": 8,
            "one row": 8, "line": 8,
        }
    )  # fmt: skip
    results = []
    for name in names:
        for way in WAYS:
            found = fresh("--worker", name, way, *limited, SIMGPU_VALUES="0")
            table.row(cells(name, way, found))
            results.append({"workload": name, "way": way, **found})
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

"""Makes the time of a step from what was recorded of it."""

from __future__ import annotations

from collections import defaultdict

from .kernel_table import table_of
from .speed import speeds
from .step_time import KindTime, StepTime
from .timeline import RecordedStep, device_ns
from .work import KINDS, Work


def step_time(step: RecordedStep, gpu: str, *, tf32: bool) -> StepTime | None:
    """Time of a recorded step on the GPU with the key ``gpu``; None if its speed is not known.
    ``tf32`` tells whether products in float32 may be made in TF32."""
    speed = speeds().get(gpu)
    if speed is None:
        return None
    table = table_of(gpu)
    rates = table or speed
    durations = [0.0 if g.work is None else rates.ns(g.work, tf32) for g in step.given]
    rows: dict[str, KindTime] = {}
    by_type: defaultdict[str, int] = defaultdict(int)
    for thing, duration in zip(step.given, durations, strict=True):
        if thing.work is not None:
            _count(rows, thing.work, duration)
            by_type[thing.work.dtype] += thing.work.flops
    most = max(by_type, key=by_type.__getitem__, default="bfloat16")
    if tf32 and most == "float32":
        most = "tf32"
    host = 0.0
    if table is not None:
        host = table.launch_ns * (step.launches - step.graphs) + table.graph_ns * step.graphs
    return StepTime(
        measured=table is not None,
        device_ns=int(device_ns(step.given, durations, step.after)),
        host_ns=int(host),
        kinds=[rows[kind] for kind in KINDS if kind in rows],
        launches=step.launches,
        graphs=step.graphs,
        unknown=step.unknown,
        peak_flops=speed.flops.get(most, max(speed.flops.values())),
        source=speed.source,
    )


def _count(rows: dict[str, KindTime], work: Work, duration: float) -> None:
    row = rows.get(work.kind)
    if row is None:
        row = KindTime(kind=work.kind, launches=0, device_ns=0, flops=0, nbytes=0)
        rows[work.kind] = row
    row.launches += 1
    row.device_ns += int(duration)
    row.flops += work.flops
    row.nbytes += work.nbytes

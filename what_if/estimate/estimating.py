"""Makes the time of a step from what was recorded of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from memprof.profiler.model import KindTime, ModuleTime, StepTime

from .kernel_table import table_of
from .speed import speeds, type_of
from .timeline import RecordedStep, device_ns
from .work import COMMUNICATION, COPY, KINDS, Work


def step_time(
    step: RecordedStep,
    gpu: str,
    *,
    tf32: Collection[str],
    links: Mapping[str, float | None] = MappingProxyType({}),
) -> StepTime | None:
    """Time of a recorded step on the GPU with the key ``gpu``; None if its speed is not known.

    Args:
        tf32: kinds of work in float32 that may be done in TF32.
        links: speeds of ``link`` and ``network`` in 10^9 bytes/s, None for the GPU's own.
    """
    speed = speeds().get(gpu)
    if speed is None:
        return None
    given: dict[str, Any] = {n: rate * 1e9 for n, rate in links.items() if rate is not None}
    speed = replace(speed, **given)
    table = table_of(gpu)
    if table is not None:
        table = replace(table, speed=speed)
    rates = table or speed
    # Layers that are alike have equal work.
    works = Counter(g.work for g in step.given if g.work is not None)
    times = {work: rates.ns(work, tf32) for work in works}
    durations = [0.0 if g.work is None else times[g.work] for g in step.given]
    rows: dict[str, KindTime] = {}
    by_module: defaultdict[str, float] = defaultdict(float)
    by_type: defaultdict[str, int] = defaultdict(int)
    at_least: set[str] = set()
    least = 0.0
    for work, launches in works.items():
        _count(rows, work, launches, times[work])
        by_module[work.module] += launches * times[work]
        by_type[type_of(work, tf32)] += launches * work.flops
        if table is not None and not table.knows(work):
            at_least.add(work.kind)
        # Streams share the device's units: beside one another they are no faster than in turn at
        # full speed.
        if work.kind not in (COPY, COMMUNICATION):
            least += launches * speed.ns(work, tf32)
    # Of several types, as if all ran at the peak of theirs.
    at_peak = sum(flops / speed.peak(dtype) for dtype, flops in by_type.items())
    host = 0.0
    if table is not None:
        host = table.launch_ns * (step.launches - step.graphs) + table.graph_ns * step.graphs
    return StepTime(
        measured=table is not None,
        device_ns=int(max(least, device_ns(step.given, durations, step.after))),
        host_ns=int(host),
        kinds=[rows[kind] for kind in KINDS if kind in rows],
        modules=[
            ModuleTime(module=module, device_ns=int(ns))
            for module, ns in sorted(by_module.items(), key=lambda pair: -pair[1])
            if any(by_module)
        ],
        launches=step.launches,
        graphs=step.graphs,
        unknown=step.unknown,
        at_least=sorted(at_least),
        peak_flops=sum(by_type.values()) / at_peak if at_peak else max(speed.flops.values()),
        source=speed.source,
    )


def _count(rows: dict[str, KindTime], work: Work, launches: int, duration: float) -> None:
    row = rows.get(work.kind)
    if row is None:
        row = KindTime(kind=work.kind, launches=0, device_ns=0, flops=0, nbytes=0)
        rows[work.kind] = row
    row.launches += launches
    row.device_ns += int(launches * duration)
    row.flops += launches * work.flops
    row.nbytes += launches * work.nbytes

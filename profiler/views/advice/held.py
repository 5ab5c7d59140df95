"""Gradients that nobody needs yet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from statistics import median

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Category, DataFlowDevice, GraphKind, Profile, TreeCause

from . import finding
from .finding import Evidence, Finding, FindingKind, at_peak, together
from .graph_trees import moved_out, output_bytes


def gradients(timeline: Timeline, attribution: Attribution, threshold: int) -> Iterator[Finding]:
    profile = timeline.profile
    flows = profile.dataflow.devices if profile.dataflow else []
    device = next((d for d in flows if d.device == timeline.device), None)
    if device is not None:
        evidence = _gradients_in_dataflow(profile, device)
    else:
        evidence = _gradients_at_peak(timeline, attribution) or _gradients_moved_out(profile)
    yield from together(
        evidence,
        threshold,
        FindingKind.GRADIENT,
        "gradients are still alive while a forward runs",
        "during the forward",
        "call optimizer.zero_grad(set_to_none=True) right after optimizer.step(), before the next "
        "forward; where gradients are accumulated over several backwards on purpose this is their "
        "price",
    )


def _gradients_in_dataflow(profile: Profile, device: DataFlowDevice) -> list[Evidence]:
    column = device.bytes.get(Category.GRADIENT)
    if not column:
        return []
    forwards = {g.id for g in profile.graphs if g.kind is GraphKind.FORWARD}
    calls = profile.calls
    # At the beginning of each forward within the time of the data-flow profile.
    begins = [calls.start_ns[k] for k in range(len(calls)) if calls.graph[k] in forwards]
    instants = [bisect_right(device.time_ns, start) for start in begins]
    held = [column[i - 1] for i in instants if 0 < i < len(device.time_ns)]
    late = [n for n in held if n]
    if len(late) < finding.MIN_TIMES:
        return []
    text = f"alive when {len(late)} of {len(held)} forwards began"
    return [Evidence(text, int(median(late)), len(late))]


def _gradients_at_peak(timeline: Timeline, attribution: Attribution) -> list[Evidence]:
    at = timeline.peak()
    graph = None if at is None else timeline.profile.graph(timeline.profile.calls.graph[at.call])
    if graph is None or graph.kind is not GraphKind.FORWARD:
        return []
    out = []
    for item, site in at_peak(timeline, attribution):
        if site.category is Category.GRADIENT:
            label = attribution.label(site.graph)
            name = site.fqn or site.node or "a gradient"
            text = f"{name}, alive at the peak, in a call of {graph.label}"
            out.append(Evidence.at(site, label, text, item.nbytes, item.count))
    return out


def _gradients_moved_out(profile: Profile) -> list[Evidence]:
    out = []
    for graph, index, count in moved_out(profile, TreeCause.HELD_GRADIENT):
        value = graph.outputs[index] if 0 <= index < len(graph.outputs) else None
        name = (value.fqn if value else None) or f"output {index}"
        text = f"{name} left the pool when the next step began"
        nbytes, node = output_bytes(graph, index), value.name if value else None
        out.append(Evidence(text, nbytes, count, graph.label, node))
    return out

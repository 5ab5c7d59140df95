"""Gradients that nobody needs yet."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Category, GraphKind, Profile, TreeCause

from .finding import Evidence, Finding, FindingKind, at_peak, together
from .graph_trees import moved_out, output_bytes


def gradients(timeline: Timeline, attribution: Attribution, threshold: int) -> Iterator[Finding]:
    evidence = _at_peak(timeline, attribution) or _moved_out(timeline.profile)
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


def _at_peak(timeline: Timeline, attribution: Attribution) -> list[Evidence]:
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


def _moved_out(profile: Profile) -> list[Evidence]:
    out = []
    for graph, index, count in moved_out(profile, TreeCause.HELD_GRADIENT):
        value = graph.outputs[index] if 0 <= index < len(graph.outputs) else None
        name = (value.fqn if value else None) or f"output {index}"
        text = f"{name} left the pool when the next step began"
        nbytes, node = output_bytes(graph, index), value.name if value else None
        out.append(Evidence(text, nbytes, count, graph.label, node))
    return out

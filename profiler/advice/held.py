"""Gradients that nobody needs yet, outputs that decide the peak, memory that nobody uses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from statistics import median

from ..attribution import Attribution
from ..model import Category, DataFlowDevice, GraphKind, GraphRecord, Profile, TreeCause
from ..timeline import Timeline
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
        "drop-gradients",
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
    graph = None if at is None else _graph_at(timeline, at.call)
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


def _graph_at(timeline: Timeline, call: int) -> GraphRecord:
    return timeline.profile.graph(timeline.profile.calls.graph[call])


def large_outputs(
    timeline: Timeline, attribution: Attribution, threshold: int
) -> Iterator[Finding]:
    """Gradients of outputs at the peak that are larger than whatever the forward keeps."""
    at = timeline.peak()
    if at is None or _graph_at(timeline, at.call).kind is not GraphKind.BACKWARD:
        return
    sites = list(at_peak(timeline, attribution))
    kept = max(
        (i.storage.nbytes for i, _ in sites if i.storage.category is Category.ACTIVATION), default=0
    )
    found = [
        (i, s)
        for i, s in sites
        if s.category is Category.AUTOGRAD_DETAIL
        and s.frame is not None
        and i.storage.nbytes > 2 * kept
        and i.storage.nbytes >= max(threshold, finding.MIN_OUTPUT_SHARE * at.nbytes)
    ]
    for item, site in sorted(found, key=lambda f: -f[0].storage.nbytes):
        name = site.module or "the root module"
        graph, text = attribution.label(site.graph), site.op or "gradient of an output"
        yield Finding(
            FindingKind.LARGE_OUTPUT,
            f"the gradient of an output of {name}, which is as large as the output itself",
            item.nbytes,
            "at the peak",
            "make the loss part of the compiled function and compute it in chunks of rows, each "
            "under torch.utils.checkpoint, or with a fused linear cross-entropy: then neither the "
            "output (logits) nor its gradient is there as a whole",
            (Evidence.at(site, graph, text, item.nbytes, item.count),),
            "chunked-loss",
        )


def fragmentation(profile: Profile) -> Iterator[Finding]:
    if profile.tracker is None:
        return
    worst: dict[str, tuple[int, int, str]] = {}
    for snapshot in profile.tracker.snapshots:
        for device, memory in snapshot.devices.items():
            reserved, allocated = memory.reserved_bytes, memory.allocated_bytes
            # On the CPU reserved bytes are the resident set, which is not the allocator's alone.
            if device.startswith("cpu") or reserved is None or allocated is None:
                continue
            if device not in worst or reserved > worst[device][0]:
                name = snapshot.name or snapshot.kind.value
                worst[device] = (reserved, allocated, name)
    findings = []
    for device, (reserved, allocated, name) in worst.items():
        nbytes = reserved - allocated
        if nbytes < max(finding.MIN_BYTES, finding.MIN_FRAGMENTED * reserved):
            continue
        findings.append(
            Finding(
                FindingKind.FRAGMENTATION,
                f"{device}: {100 * nbytes / reserved:.0f} % of what the allocator holds is unused",
                nbytes,
                f"reserved on {device}",
                "set PYTORCH_ALLOC_CONF=expandable_segments:True, allocate large and long-lived "
                "tensors first, and round sizes that vary (roundup_power2_divisions)",
                (
                    Evidence(f"reserved at the snapshot `{name}`", reserved),
                    Evidence("allocated then", allocated),
                ),
                "expandable-segments",
            )
        )
    yield from sorted(findings, key=lambda f: -f.nbytes)

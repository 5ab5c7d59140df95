"""Activations that are cheaper to compute again than to keep."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from .._text import is_inside, without_numbers
from ..attribution import Attribution, Site
from ..live import LiveItem
from ..model import Category, NodeProvenance, Profile
from ..timeline import Timeline
from .cheapness import cheapness
from .finding import Evidence, Finding, FindingKind, at_peak
from .recomputed_peak import RecomputedPeak, made


def recompute(timeline: Timeline, attribution: Attribution, threshold: int) -> Iterator[Finding]:
    at = timeline.peak()
    if at is None:
        return
    groups: dict[tuple[str | None, str], list[tuple[LiveItem, Site]]] = defaultdict(list)
    for item, site in at_peak(timeline, attribution):
        if (
            item.storage.category is Category.ACTIVATION
            and site.node is not None
            and not site.outside
        ):
            place = site.frame.location if site.frame else site.node
            module = None if site.module is None else without_numbers(site.module)
            groups[module, place].append((item, site))
    ranked = []
    for (module, _), members in groups.items():
        worth = sum(i.nbytes * cheapness(s.op) for i, s in members)
        if worth >= threshold:
            lifetime = _lifetime(timeline, attribution, members)
            ranked.append((worth * max(lifetime, 1), module, lifetime, members))
    if not ranked:
        return
    peaks = RecomputedPeak(timeline)
    for _, module, lifetime, members in sorted(ranked, key=lambda r: -r[0]):
        takes, remedy = _remedy(timeline.profile, module, members)
        nbytes = at.nbytes - peaks.without({made(i) for i, _ in members}, takes)
        if nbytes < threshold:
            continue
        ops = _names({_short(s.op) for _, s in members})
        unit = "call" if lifetime == 1 else "calls"
        kept = f", kept for {lifetime:g} {unit}" if lifetime else ""
        name = "an unknown module" if module is None else module or "the root module"
        yield Finding(
            FindingKind.RECOMPUTE,
            f"{ops} in {name}: kept for the backward, cheap to compute again"
            if min(cheapness(s.op) for _, s in members) >= 0.5
            else f"{ops} in {name}: kept for the backward",
            nbytes,
            "at the peak",
            f"compute it again in the backward: call {_to_wrap(timeline, members)} through "
            "torch.utils.checkpoint.checkpoint(use_reentrant=False), or let the compiler choose "
            "with torch._functorch.config.activation_memory_budget below 1.0",
            tuple(
                Evidence.at(
                    s, attribution.label(s.graph), f"{_short(s.op)}{kept}", i.nbytes, i.count
                )
                for i, s in sorted(members, key=lambda m: -m[0].nbytes)
            ),
            remedy,
        )


def _remedy(
    profile: Profile, module: str | None, members: Sequence[tuple[LiveItem, Site]]
) -> tuple[Callable[[NodeProvenance], bool], str]:
    """What is to be computed again: whether a node is, and as `memprof advise` is told it,
    ``recompute=aten.gelu.default@model.py:55@blocks.*.mlp``; empty where the line is not known.

    That is what has made these values, with what is cheap of the same line, module and kernel: else
    that would be kept in their place.
    """
    frame = members[0][1].frame
    if frame is None:
        return lambda node: False, ""

    def is_here(node: NodeProvenance) -> bool:
        return node.frame == frame and is_inside(node.module_path, module)

    ops = {s.op for _, s in members if s.op}
    for item, site in members if ops else ():
        graph = profile.graph(site.graph)
        buffer = graph.buffers.get(item.owner or "")
        for node in (graph.nodes.get(n) for n in (buffer.nodes if buffer else ())):
            if node is not None and is_here(node) and cheapness(_operator(node)) == 1.0:
                ops.add(_operator(node))
    where = f"{os.path.basename(frame.file)}:{frame.line}" + (f"@{module}" if module else "")
    text = f"recompute={'+'.join(sorted(ops))}@{where}" if ops else ""
    return lambda node: is_here(node) and _operator(node) in ops, text


def _operator(node: NodeProvenance) -> str:
    return node.original_aten or node.target


def _lifetime(
    timeline: Timeline, attribution: Attribution, members: list[tuple[LiveItem, Site]]
) -> float:
    """Median number of calls from the forwards that made them to their backwards, 0 unknown."""
    graphs = {site.graph for _, site in members}
    found = [
        calls
        for unit in timeline.units
        if unit.graph.id in graphs and (counter := timeline.lifetimes.get(unit.id))
        for calls in counter.elements()
    ]
    return median(found) if found else 0


def _to_wrap(timeline: Timeline, members: list[tuple[LiveItem, Site]]) -> str:
    """The module to checkpoint. A module without children is not worth it: what it returns is
    saved by whoever takes it, so the one around both has to be wrapped."""
    path = members[0][1].module or ""
    modules = {n.module_path for g in timeline.profile.graphs for n in g.nodes.values()}
    if path and not any(m and m.startswith(f"{path}.") for m in modules):
        path = path.rpartition(".")[0]
    return without_numbers(path) or "parts of the model"


def _short(op: str | None) -> str:
    return (op or "?").removeprefix("aten.").removesuffix(".default")


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (" and others" if len(ordered) > 3 else "")

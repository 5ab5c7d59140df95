"""Activations that are cheaper to compute again than to keep."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from statistics import median

from .._text import is_inside, without_numbers
from ..attribution import Attribution, Site
from ..live import LiveItem
from ..model import Category, NodeProvenance, Profile
from ..timeline import Timeline
from .cheapness import cheapness
from .finding import Evidence, Finding, FindingKind, at_peak
from .recomputed_peak import Made, RecomputedPeak, made


def recompute(
    timeline: Timeline, attribution: Attribution, threshold: int, others: Collection[Made] = ()
) -> Iterator[Finding]:
    """Activations to compute again, but for those of ``others``' findings."""
    at = timeline.peak()
    if at is None:
        return
    groups: dict[tuple[str | None, str], list[tuple[LiveItem, Site]]] = defaultdict(list)
    for item, site in at_peak(timeline, attribution):
        mine = item.storage.category is Category.ACTIVATION and made(item) not in others
        if mine and site.node is not None and not site.outside:
            place = site.frame.location if site.frame else site.node
            groups[_module(site), place].append((item, site))
    # What the same module would have to be wrapped for is one finding.
    ranked: dict[object, list[tuple[float, list[tuple[LiveItem, Site]]]]] = defaultdict(list)
    for key, members in groups.items():
        worth = sum(i.nbytes * cheapness(s.op) for i, s in members)
        if worth >= threshold:
            rank = worth * max(_lifetime(timeline, attribution, members), 1)
            ranked[_to_wrap(timeline, members) or key].append((rank, members))
    if not ranked:
        return
    peaks = RecomputedPeak(timeline)
    drawing = {g.id: g.random for g in timeline.profile.graphs}
    for parts in sorted(ranked.values(), key=lambda parts: -sum(rank for rank, _ in parts)):
        members = [m for _, part in parts for m in part]
        remedies = [_remedy(timeline.profile, part) for _, part in parts]
        takes = _by_any([take for take, _ in remedies])
        nbytes = at.nbytes - peaks.without({made(i) for i, _ in members}, takes)
        if nbytes < threshold:
            continue
        lifetime = _lifetime(timeline, attribution, members)
        unit = "call" if lifetime == 1 else "calls"
        kept = f", kept for {lifetime:g} {unit}" if lifetime else ""
        wrap = _to_wrap(timeline, members)
        module = _module(members[0][1]) if len(parts) == 1 else wrap
        name = "an unknown module" if module is None else module or "the root module"
        cheap = min(cheapness(s.op) for _, s in members) >= 0.5
        yield Finding(
            FindingKind.RECOMPUTE,
            f"{_names({_short(s.op) for _, s in members})} in {name}: kept for the backward"
            + ", cheap to compute again" * cheap,
            nbytes,
            "at the peak",
            f"compute it again in the backward: call {wrap or 'parts of the model'} through "
            "torch.utils.checkpoint.checkpoint(use_reentrant=False)"
            + _BUDGET[drawing[members[0][1].graph]],
            tuple(
                Evidence.at(
                    s, attribution.label(s.graph), f"{_short(s.op)}{kept}", i.nbytes, i.count
                )
                for i, s in sorted(members, key=lambda m: -m[0].nbytes)
            ),
            ";".join(text for _, text in remedies if text),
        )


_BUDGET: dict[bool | None, str] = {
    False: ", or let the compiler choose with torch._functorch.config.activation_memory_budget "
    "below 1.0",
    True: "; not activation_memory_budget, with which the backward draws new random numbers "
    "for dropout and gradients are wrong (pytorch/pytorch#190758)",
    None: "",
}
"""Words on the partitioner's own choice, by whether the graph draws random numbers. torch 2.11 to
2.15 keep their state for what a checkpoint runs again, and not for what the budget does."""


def _by_any(
    takes: Sequence[Callable[[NodeProvenance], bool]],
) -> Callable[[NodeProvenance], bool]:
    return lambda node: any(take(node) for take in takes)


def _module(site: Site) -> str | None:
    return None if site.module is None else without_numbers(site.module)


def _remedy(
    profile: Profile, members: Sequence[tuple[LiveItem, Site]]
) -> tuple[Callable[[NodeProvenance], bool], str]:
    """What is to be computed again: whether a node is, and as `memprof advise` is told it,
    ``recompute=aten.gelu.default@model.py:55@blocks.*.mlp``; empty where the line is not known.

    That is what has made these values, with what is cheap of the same line, module and kernel: else
    that would be kept in their place.
    """
    frame, module = members[0][1].frame, _module(members[0][1])
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
    """The module to checkpoint, "" where it is the whole model. A module without children is not
    worth it: what it returns is saved by whoever takes it, so the one around both is wrapped."""
    path = members[0][1].module or ""
    modules = {n.module_path for g in timeline.profile.graphs for n in g.nodes.values()}
    if path and not any(m and m.startswith(f"{path}.") for m in modules):
        path = path.rpartition(".")[0]
    return without_numbers(path)


def _short(op: str | None) -> str:
    return (op or "?").removeprefix("aten.").removesuffix(".default")


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (" and others" if len(ordered) > 3 else "")

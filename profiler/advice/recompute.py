"""Activations that are cheaper to compute again than to keep."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from .._text import is_inside, without_numbers
from ..attribution import Attribution, Site
from ..live import LiveItem
from ..model import Category, NodeProvenance, Profile, SourceFrame
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
        if site.category is Category.ACTIVATION and site.node is not None and not site.outside:
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
        remedy = _Remedy.of(timeline.profile, module, members)
        nbytes = at.nbytes - peaks.without({made(i) for i, _ in members}, remedy.takes)
        if nbytes < threshold:
            continue
        ops = _names({_short(s.op) for _, s in members})
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
                    *(s, attribution.label(s.graph), f"{_short(s.op)}{_kept(lifetime)}"),
                    *(i.nbytes, i.count),
                )
                for i, s in sorted(members, key=lambda m: -m[0].nbytes)
            ),
            remedy.text,
        )


@dataclass(frozen=True, slots=True)
class _Remedy:
    """What is to be computed again, as `memprof advise` is told it.

    Attributes:
        operators: by name; none where the line is not known.
        frame: the line.
        module: whose operators, None for any.
    """

    operators: frozenset[str]
    frame: SourceFrame | None
    module: str | None

    @staticmethod
    def of(
        profile: Profile, module: str | None, members: Sequence[tuple[LiveItem, Site]]
    ) -> _Remedy:
        """What has made these values, with what is cheap of the same line, module and kernel: else
        that would be kept in their place."""
        frame = members[0][1].frame
        ops = {s.op for _, s in members if s.op} if frame is not None else set()
        found = _Remedy(frozenset(ops), frame, module)
        for item, site in members if ops else ():
            graph = profile.graph(site.graph)
            buffer = graph.buffers.get(item.owner or "")
            for node in (graph.nodes.get(n) for n in (buffer.nodes if buffer else ())):
                if node is not None and found._is_here(node) and cheapness(_operator(node)) == 1.0:
                    ops.add(_operator(node))
        return replace(found, operators=frozenset(ops))

    def takes(self, node: NodeProvenance) -> bool:
        """Whether it is about a node."""
        return self._is_here(node) and _operator(node) in self.operators

    @property
    def text(self) -> str:
        """``recompute=aten.gelu.default@model.py:55@blocks.*.mlp``; empty where it is not known."""
        if self.frame is None or not self.operators:
            return ""
        line = f"{os.path.basename(self.frame.file)}:{self.frame.line}"
        where = f"@{self.module}" if self.module else ""
        return f"recompute={'+'.join(sorted(self.operators))}@{line}{where}"

    def _is_here(self, node: NodeProvenance) -> bool:
        return node.frame == self.frame and is_inside(node.module_path, self.module)


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


def _kept(lifetime: float) -> str:
    if not lifetime:
        return ""
    return f", kept for {lifetime:g} {'call' if lifetime == 1 else 'calls'}"


def _short(op: str | None) -> str:
    return (op or "?").removeprefix("aten.").removesuffix(".default")


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (" and others" if len(ordered) > 3 else "")

"""Activations that a backward could compute again instead of keeping them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from memprof.profiler.live.attribution import Attribution, Site
from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Category, GraphKind, NodeProvenance
from memprof.profiler.support.text import without_numbers

from .finding import Evidence, Finding, FindingKind, Made, at_peak, made
from .logits import is_product


def recompute(
    timeline: Timeline, attribution: Attribution, threshold: int, others: Collection[Made] = ()
) -> Iterator[Finding]:
    """Activations to compute again, but for those of ``others``' findings."""
    classes, parents, checkpointed = _modules(timeline)
    groups: dict[str, list[tuple[LiveItem, Site]]] = defaultdict(list)
    for item, site in at_peak(timeline, attribution):
        mine = item.storage.category is Category.ACTIVATION and made(item) not in others
        if mine and site.node is not None and not site.outside:
            wrap = _to_wrap(site.module, parents)
            if wrap not in checkpointed:
                place = site.frame.location if site.frame else site.node
                groups[without_numbers(wrap) or place].append((item, site))
    drawing = {g.id: g.random for g in timeline.profile.graphs}
    for members in sorted(groups.values(), key=_bytes_of, reverse=True):
        nbytes = _bytes_of(members)
        if nbytes < threshold:
            return
        first = members[0][1]
        path = _to_wrap(first.module, parents)
        wrap = without_numbers(path)
        names = {None if s.module is None else without_numbers(s.module) for _, s in members}
        module = names.pop() if len(names) == 1 else wrap
        name = "an unknown module" if module is None else module or "the root module"
        measured = ""
        if (timeline.device or "").startswith("cuda") and path in classes:
            measured = (
                f"; memprof fit --try checkpoint={classes[path]} -- python train.py measures it"
            )
        evidence = []
        for item, site in sorted(members, key=lambda m: -m[0].nbytes):
            label, text = attribution.label(site.graph), _short(site.op)
            evidence.append(Evidence.at(site, label, text, item.nbytes, item.count))
        yield Finding(
            FindingKind.RECOMPUTE,
            f"{_names({_short(s.op) for _, s in members})} in {name}: kept for the backward",
            nbytes,
            "at the peak",
            f"compute it again in the backward: call {wrap or 'parts of the model'} through "
            "torch.utils.checkpoint.checkpoint(use_reentrant=False)"
            + _BUDGET[drawing[first.graph]]
            + measured,
            tuple(evidence),
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


def _modules(timeline: Timeline) -> tuple[dict[str, str], set[str], set[str]]:
    """Paths of the modules of all graphs: with the name of the class, where some operator is the
    module's own; those with children; and those to wrap whose products a backward computes again:
    a partitioner does so for checkpoints, and budgets, alone."""
    classes: dict[str, str] = {}
    parents: set[str] = set()
    again: list[NodeProvenance] = []
    for graph in timeline.profile.graphs:
        is_backward = graph.kind is GraphKind.BACKWARD
        for node in graph.nodes.values():
            path = node.module_path
            if not path:
                continue
            if node.module_type:  # FSDP2 puts its name before a class's own.
                classes[path] = node.module_type.removeprefix("FSDP")
            while path := path.rpartition(".")[0]:
                parents.add(path)
            if is_backward and node.recomputed and is_product(node.target):
                again.append(node)
    return classes, parents, {_to_wrap(node.module_path, parents) for node in again}


def _to_wrap(path: str | None, parents: Collection[str]) -> str:
    """The module to checkpoint for what one computes, "" where it is the whole model. One without
    children, not among ``parents``, is not worth it: what it returns is saved by whoever takes it,
    so the one around both is wrapped."""
    path = path or ""
    return path if path in parents else path.rpartition(".")[0]


def _bytes_of(members: Iterable[tuple[LiveItem, Site]]) -> int:
    return sum(item.nbytes for item, _ in members)


def _short(op: str | None) -> str:
    return (op or "?").removeprefix("aten.").removesuffix(".default")


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (" and others" if len(ordered) > 3 else "")

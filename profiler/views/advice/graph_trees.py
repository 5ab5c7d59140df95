"""Findings on work of graph trees that a change of the program would spare."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from memprof.profiler.live.trees import has_moved, inputs_to_blame
from memprof.profiler.model import (
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Profile,
    Role,
    Storage,
    TreeCause,
    TreeDetail,
)

from . import finding
from .finding import Evidence, Finding, FindingKind

_STATE = {Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE}
_GIVEN = {*_STATE, Role.USER_INPUT, Role.PARAMETER_GRADIENT}


def static_inputs(profile: Profile, threshold: int) -> Iterator[Finding]:
    times: Counter[int | None] = Counter()
    skipped: set[int | None] = set()
    for entry, tree in _of_trees(profile, LedgerKind.REPLAY, LedgerKind.SKIP):
        if entry.kind is LedgerKind.REPLAY:
            times[entry.graph] += entry.count
        elif tree.cause is TreeCause.WRITES_TO_COPIED:
            times[entry.graph] += entry.count
            skipped.add(entry.graph)
    evidence = []
    for graph in profile.graphs:
        if times[graph.id] < finding.MIN_TIMES:
            continue
        for storage in _entering(graph):
            values = [graph.inputs[i] for i in storage.inputs if i < len(graph.inputs)]
            if not values or any(v.static or v.role not in _GIVEN for v in values):
                continue
            value, mutated = values[0], any(v.mutated for v in values)
            if graph.id in skipped:
                why = "the graph writes to it, so it runs without a CUDA graph" if mutated else ""
            elif any(v.role in _STATE for v in values):
                why = f"{value.role.value.replace('_', ' ')} without a static address"
            else:
                why = "the graph writes to it: the same memory at every call" if mutated else ""
            if not why:
                continue
            text = f"{value.label}: {why}"
            evidence.append(
                Evidence(text, storage.nbytes, times[graph.id], graph.label, value.name)
            )
    nbytes = sum(e.nbytes for e in evidence)
    if nbytes >= threshold:
        yield Finding(
            FindingKind.STATIC_INPUT,
            "inputs that stay where they are and yet are copied in every replay, or prevent it",
            nbytes,
            "in such inputs",
            "declare them static before the first call: torch._dynamo.mark_static_address(tensor), "
            "or make them parameters or buffers of the compiled module",
            tuple(sorted(evidence, key=lambda e: -e.nbytes)),
        )


def _entering(graph: GraphRecord) -> list[Storage]:
    """Inputs of a graph, each once, largest program first."""
    found: dict[tuple[int, ...], Storage] = {}
    for s in (s for program in graph.programs for s in program.storages):
        if s.inputs and s.device != "cpu":
            found[s.inputs] = max(found.get(s.inputs, s), s, key=lambda s: s.nbytes)
    return list(found.values())


def moving_addresses(profile: Profile, threshold: int) -> Iterator[Finding]:
    """Functions that are recorded again and again, or no more, because inputs move."""
    graphs: dict[int | None, GraphRecord] = {g.id: g for g in profile.graphs}
    again: dict[str, list[tuple[LedgerEntry, TreeDetail]]] = defaultdict(list)
    findings = []
    stopped = set()
    for entry, tree in _of_trees(profile, LedgerKind.RERECORD, LedgerKind.SKIP):
        if tree.cause is TreeCause.KEEPS_MOVING:
            findings.append(_not_recorded(entry, tree, graphs.get(entry.graph)))
            stopped.add(tree.function)
        elif has_moved(entry):
            again[tree.function].append((entry, tree))
    for function, entries in again.items():
        if function in stopped:
            continue
        times = sum(e.count for e, _ in entries)
        graph = graphs.get(entries[0][0].graph)
        evidence = _moving_inputs([e for e, _ in entries], graph, function)
        # Recordings at one place share the pool's memory, so what they add to it can be little:
        # what is at stake is the input.
        nbytes = max(sum(t.marginal for _, t in entries), sum(e.nbytes for e in evidence))
        if times < finding.MIN_TIMES or nbytes < threshold:
            continue
        findings.append(
            Finding(
                FindingKind.MOVING_ADDRESS,
                f"{function} was recorded {times:,} times again because an input has moved",
                nbytes,
                "in inputs that move",
                "allocate them once and copy_() into them (assigning .data or a new tensor moves "
                "them); what has to move should not be declared static: then it is copied",
                evidence,
            )
        )
    yield from sorted(findings, key=lambda f: -f.nbytes)


def _not_recorded(entry: LedgerEntry, tree: TreeDetail, graph: GraphRecord | None) -> Finding:
    return Finding(
        FindingKind.MOVING_ADDRESS,
        f"{tree.function} ran {entry.count:,} times without a CUDA graph because its parameters "
        "lie somewhere else in each step",
        tree.nbytes,
        "in inputs that move",
        "allocate them once and copy_() into them (assigning .data or a new tensor moves them). "
        "Where that is not possible, as with FSDP, nothing is to be done: memprof has stopped "
        'recording; options={"graphs": False} spares it the first steps too',
        _moving_inputs([entry], graph, tree.function),
    )


def _moving_inputs(
    entries: Sequence[LedgerEntry], graph: GraphRecord | None, function: str
) -> tuple[Evidence, ...]:
    """Evidence of each input to blame, largest first; one of an unknown input if none is named."""
    times: Counter[GraphValue | None] = Counter()
    for entry in entries:
        blamed: Sequence[GraphValue | None] = inputs_to_blame(entry, graph)
        for value in blamed or [None]:
            times[value] += entry.count
    found = []
    for value, n in times.items():
        nbytes = 0
        if graph is not None and value is not None:
            storages = (s for p in graph.programs for s in p.storages if value.index in s.inputs)
            nbytes = value.nbytes or max((s.nbytes for s in storages), default=0)
        name = value.label if value else "an input"
        text, label = f"{name} was at another address", graph.label if graph else function
        found.append(Evidence(text, nbytes, n, label, value.name if value else None))
    return tuple(sorted(found, key=lambda e: -e.nbytes))


def _of_trees(profile: Profile, *kinds: LedgerKind) -> Iterator[tuple[LedgerEntry, TreeDetail]]:
    for entry in profile.ledger:
        if entry.kind in kinds and entry.tree is not None:
            yield entry, entry.tree

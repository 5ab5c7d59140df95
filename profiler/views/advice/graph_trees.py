"""Findings on work of graph trees that a change of the program would spare."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from memprof.profiler.live.trees import (
    has_moved,
    inputs_to_blame,
    pool_bytes,
    pool_growth,
    writes_to_copied,
)
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
from .finding import Evidence, Finding, FindingKind, together


def output_clones(profile: Profile, threshold: int) -> Iterator[Finding]:
    graphs: dict[int | None, GraphRecord] = {g.id: g for g in profile.graphs}
    times: Counter[tuple[int | None, int]] = Counter()
    for entry, tree in _of_trees(profile, LedgerKind.MOVED_OUT):
        if tree.cause is TreeCause.HELD:
            for index in tree.outputs:
                times[entry.graph, index] += entry.count
    evidence = []
    for (graph_id, index), count in times.items():
        graph = graphs.get(graph_id)
        if count < finding.MIN_TIMES or graph is None:
            continue
        node = graph.outputs[index].name if index < len(graph.outputs) else None
        source = graph.nodes.get(node or "")
        text = f"output {index} was held when the next step began"
        where = (source.module_path, source.frame) if source else (None, None)
        nbytes = _output_bytes(graph, index)
        evidence.append(Evidence(text, nbytes, count, graph.label, node, *where))
    yield from together(
        evidence,
        threshold,
        FindingKind.OUTPUT_CLONE,
        "outputs that are held beyond their step are copied out of the pool in every step",
        "outside the pool",
        "let go of them before the next step begins (del, or keep loss.item() and "
        "detached copies of the part you need), or copy them once into a buffer of your own",
    )


def _output_bytes(graph: GraphRecord, index: int) -> int:
    storages = [s for p in graph.programs for s in p.storages if index in s.outputs]
    if storages:
        return max(s.nbytes for s in storages)
    return (graph.outputs[index].nbytes or 0) if index < len(graph.outputs) else 0


_STATE = {Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE}
_GIVEN = {*_STATE, Role.USER_INPUT, Role.PARAMETER_GRADIENT}


def static_inputs(profile: Profile, threshold: int) -> Iterator[Finding]:
    times: Counter[int | None] = Counter()
    skipped: set[int | None] = set()
    for entry, _ in _of_trees(profile, LedgerKind.REPLAY, LedgerKind.SKIP):
        if entry.kind is LedgerKind.REPLAY:
            times[entry.graph] += entry.count
        elif writes_to_copied(entry):
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
            nbytes, count = storage.nbytes, times[graph.id]
            evidence.append(Evidence(text, nbytes, count, graph.label, value.name))
    yield from together(
        evidence,
        threshold,
        FindingKind.STATIC_INPUT,
        "inputs that stay where they are and yet are copied in every replay, or prevent it",
        "in such inputs",
        "declare them static before the first call: torch._dynamo.mark_static_address(tensor), "
        "or make them parameters or buffers of the compiled module",
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


def shapes(profile: Profile) -> Iterator[Finding]:
    threshold = _pool_threshold(profile)
    by_function: dict[tuple[str, str], dict[tuple[int, ...], int]] = defaultdict(Counter)
    # What a warm-up has asked of the pool a recording often finds there.
    grown: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for entry, tree in _of_trees(
        profile, LedgerKind.WARM_UP, LedgerKind.RECORD, LedgerKind.RERECORD
    ):
        if has_moved(entry):
            continue
        grown[tree.device, tree.function, tree.key] += pool_growth(entry)
        if entry.kind is not LedgerKind.WARM_UP:
            by_function[tree.device, tree.function][tree.key] += entry.count
    found = []
    pools = pool_bytes(profile.ledger)
    for (device, function), keys in by_function.items():
        costs = sorted(((grown[device, function, k], k, n) for k, n in keys.items()), reverse=True)
        nbytes = sum(marginal for marginal, _, _ in costs[1:])
        nbytes = min(nbytes, pools.get(device, nbytes))  # What made other pools grow is gone.
        if len(costs) >= finding.MIN_SIZES and nbytes >= threshold:
            found.append((nbytes, device, function, costs))
    for nbytes, device, function, costs in sorted(found, reverse=True):
        yield Finding(
            FindingKind.SHAPES,
            f"{function} has recordings for {len(costs)} combinations of sizes on {device}",
            nbytes,
            "of the pool",
            "pad inputs to a few sizes, or call the rare ones without a graph "
            '(options={"graphs": False})',
            tuple(
                Evidence(f"sizes {', '.join(map(str, key)) or '()'}", marginal, count, function)
                for marginal, key, count in costs
            ),
        )


def _of_trees(profile: Profile, *kinds: LedgerKind) -> Iterator[tuple[LedgerEntry, TreeDetail]]:
    for entry in profile.ledger:
        if entry.kind in kinds and entry.tree is not None:
            yield entry, entry.tree


def _pool_threshold(profile: Profile) -> int:
    pool = max(pool_bytes(profile.ledger).values(), default=0)
    return max(finding.MIN_BYTES, int(finding.MIN_SHARE * pool))

"""A profile of the size that pages must open at once: 10,000 calls, 100,000 allocations."""

from __future__ import annotations

from profile_builder import KIB, MIB, ProgramBuilder, buffer, calls, node

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Machine,
    Profile,
    Role,
    Statement,
)

GRAPHS = 50
"""Forwards; each has a backward."""


def big_profile(n_calls: int = 10_000, allocations: int = 100_000) -> Profile:
    """Forwards and backwards of many layers, every allocation at a node and line of its own.

    Args:
        n_calls: calls in the log.
        allocations: of all programs together.
    """
    each = allocations // (2 * GRAPHS)
    graphs = []
    for i in range(GRAPHS):
        graphs += [_forward(2 * i, i, each), _backward(2 * i + 1, i, each)]
    pairs = [((2 * i, 0), (2 * i + 1, 0)) for i in range(GRAPHS)]
    rows = [call for k in range(n_calls // 2) for call in pairs[k % GRAPHS]]
    return Profile(
        created_ns=1_700_000_000_000_000_000,
        memprof="0.1.0",
        torch="2.13.0+cpu",
        python="3.11.4",
        machine=Machine("Linux-6.1", "Some CPU", 2, 8 * KIB * MIB),
        graphs=graphs,
        calls=calls(*rows),
        ledger=[
            LedgerEntry(k, LedgerKind.COMPILED, g.id, "first compilation")
            for k, g in enumerate(graphs)
        ],
    )


def count_allocations(profile: Profile) -> int:
    """Allocations of all programs."""
    return sum(
        e.kind.value == "alloc" for g in profile.graphs for p in g.programs for e in p.events
    )


def _forward(id: int, layer: int, each: int) -> GraphRecord:
    builder = ProgramBuilder().input("w", 4 * MIB, Category.PARAMETER, 10 + layer, [0])
    for k in range(each):
        saved = k % 10 == 0
        builder.alloc(
            f"buf{k}",
            (64 + 7 * (k % 97)) * KIB,
            100 + k,
            Category.ACTIVATION if saved else Category.TEMPORARY,
            1_000_000 + layer * each + k if saved else None,
            [k // 10] if saved else [],
        )
        if k >= 4 and (k - 4) % 10:
            builder.free(f"buf{k - 4}", 100 + k)
    for k in range(max(0, each - 4), each):
        if k % 10:
            builder.free(f"buf{k}", 100 + each)
    inputs = (GraphValue(0, "w", Role.PARAMETER, Category.PARAMETER, f"layers.{layer}.weight"),)
    outputs = tuple(
        GraphValue(k, f"op{10 * k}", Role.SAVED_FOR_BACKWARD, Category.ACTIVATION)
        for k in range(-(-each // 10))
    )
    return _graph(id, GraphKind.FORWARD, layer, each, inputs, outputs, builder.build())


def _backward(id: int, layer: int, each: int) -> GraphRecord:
    builder = ProgramBuilder().input("w", 4 * MIB, Category.PARAMETER, 10 + layer, [0])
    saved = [k for k in range(each) if k % 10 == 0]
    for n, k in enumerate(saved, 1):
        nbytes = (64 + 7 * (k % 97)) * KIB
        identity = 1_000_000 + layer * each + k
        builder.input(f"op{k}", nbytes, Category.ACTIVATION, identity, [n])
    for k in range(each):
        builder.alloc(f"buf{k}", (32 + 5 * (k % 89)) * KIB, 100 + k)
        if k >= 6:
            builder.free(f"buf{k - 6}", 100 + k)
        if k % 10 == 9:
            builder.free(f"op{k - 9}", 100 + k)
    S = Role.SAVED_FOR_BACKWARD
    inputs = (
        GraphValue(0, "w", Role.PARAMETER, Category.PARAMETER, f"layers.{layer}.weight"),
        *(
            GraphValue(n, f"op{k}", S, Category.ACTIVATION, forward_output=n - 1)
            for n, k in enumerate(saved, 1)
        ),
    )
    return _graph(id, GraphKind.BACKWARD, layer, each, inputs, (), builder.build())


def _graph(
    id: int,
    kind: GraphKind,
    layer: int,
    each: int,
    inputs: tuple[GraphValue, ...],
    outputs: tuple[GraphValue, ...],
    program: AllocationProgram,
) -> GraphRecord:
    nodes = [
        node(f"op{k}", "aten.mm.default", f"layers.{layer}.block{k % 20}", 1 + k % 400)
        for k in range(each)
    ]
    return GraphRecord(
        id,
        kind,
        f"{layer}/0",
        layer,
        ("cpu",),
        GraphDescription(inputs, outputs),
        {n.name: n for n in nodes},
        {f"buf{k}": buffer(f"buf{k}", f"op{k}") for k in range(each)},
        tuple(
            Statement(
                100 + k,
                (f"buf{k}",),
                (),
                f"buf{k} = empty_strided_cpu(({64 + k}, 256), (256, 1), torch.float32)",
                "Runner.call",
            )
            for k in range(each)
        ),
        [program],
        calls=1,
    )

"""Placements: no two blocks that are there at once overlap, and all lie in the pool."""

from __future__ import annotations

import pytest
import torch
from framing import findings
from torch import nn

import memprof
from memprof.cudagraph_trees.explain.placement import MAX_PLACEMENTS, keep, placed
from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    GraphKind,
    GraphRecord,
    LedgerKind,
    Origin,
    PlacedBlock,
    Placement,
    Storage,
)


def check(placement: Placement) -> None:
    """Everything that must hold of any placement."""
    inside = [(a, a + n) for a, n in placement.segments]
    for b in placement.blocks:
        assert any(a <= b.address and b.address + b.nbytes <= end for a, end in inside), b
        assert 0 <= b.begin < b.end <= len(placement.lines) + 1
    for instant in range(len(placement.lines) + 1):
        end = 0
        for b in placement.live_at(instant):
            assert b.address >= end, (instant, b)
            end = b.address + b.nbytes


def program(*steps: tuple[str, int, int]) -> AllocationProgram:
    """``(name, bytes, line)`` allocates, with 0 bytes frees."""
    storages: list[Storage] = []
    events = []
    for name, nbytes, line in steps:
        if nbytes:
            events.append(Event(EventKind.ALLOC, len(storages), line, name))
            storages.append(
                Storage(len(storages), nbytes, "cpu", Origin.BUFFER, name, Category.TEMPORARY)
            )
        else:
            known = next(s.id for s in storages if s.name == name)
            events.append(Event(EventKind.FREE, known, line))
    return AllocationProgram((), tuple(storages), tuple(events))


def test_blocks_of_a_program() -> None:
    p = program(("a", 100, 1), ("b", 50, 2), ("a", 0, 3), ("c", 80, 4), ("b", 0, 5))
    passed_on = Event(EventKind.REUSE, 1, 3, "d")
    p = AllocationProgram((), p.storages, (*p.events[:3], passed_on, *p.events[3:]))
    assert placed(7, p, {0: 0, 1: 128, 2: 0}) == [
        PlacedBlock(0, 100, 1, 3, Category.TEMPORARY, 7, "a", 1),
        PlacedBlock(0, 80, 5, 7, Category.TEMPORARY, 7, "c", 4),
        PlacedBlock(128, 50, 2, 4, Category.TEMPORARY, 7, "b", 2),
        PlacedBlock(128, 50, 4, 6, Category.TEMPORARY, 7, "d", 3),
    ]


def test_only_the_latest_are_kept() -> None:
    record = GraphRecord(0, GraphKind.FORWARD)
    for node in (*range(MAX_PLACEMENTS + 3), 5):
        keep(record, Placement("cuda:0", (), node, (), (), ()))
    numbers = [p.node for p in record.placements]
    assert numbers == [3, 4, *range(6, MAX_PLACEMENTS + 3), 5]


@pytest.mark.simgpu
def test_recordings_of_graph_trees() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    compiled = torch.compile(model, backend="memprof")
    x = torch.ones(32, 64, device="cuda")
    with memprof.profile() as session:
        for _ in range(6):
            model.zero_grad()
            compiled(x).sum().backward()
    profile = session.profile()
    recorded = {
        (e.tree.function, e.tree.node)
        for e in profile.ledger
        if e.tree is not None and e.kind is LedgerKind.RECORD
    }
    found = {(g.label, p.node) for g in profile.graphs for p in g.placements}
    assert found == recorded
    assert len(found) == 2
    for graph in profile.graphs:
        for placement in graph.placements:
            check(placement)
            assert placement.pool == "cuda:0"
            assert any(b.owner in graph.buffers for b in placement.blocks)
    # What the backward has at entry is named as what it is: by size, activations of the forward
    # and the tangent, although Inductor orders a partition's inputs by its own code.
    for b in (b for g in profile.graphs for p in g.placements for b in p.live_at(0)):
        if b.node is None:
            graph = profile.graph(b.graph)
            values = [graph.inputs[i] for i in b.inputs]
            assert values, b
            assert b.owner in {v.name for v in values}
            assert all(v.nbytes is None or v.nbytes <= b.nbytes < v.nbytes + 512 for v in values)
    # The forward's activations are there when the backward begins.
    backward = next(g for g in profile.graphs if g.kind is GraphKind.BACKWARD)
    (placement,) = backward.placements
    assert any(b.category is Category.ACTIVATION for b in placement.live_at(0))
    assert not findings(profile)

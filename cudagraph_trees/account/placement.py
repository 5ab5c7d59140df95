"""Where a recording's memory lies, for a profile. Pure data but for what it reads from a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from memprof.profiler.model import (
    AllocationProgram,
    EventKind,
    GraphRecord,
    PlacedBlock,
    Placement,
)

from .. import _torch_compat as compat
from ..node import CUDAGraphNode, path_to

MAX_PLACEMENTS = 16
"""Kept a graph, the latest: a function that is recorded again and again must not fill a file."""


def keep(record: GraphRecord, placement: Placement) -> None:
    """Add ``placement`` to the record; the one that it replaces goes, then the oldest."""
    same = (placement.pool, placement.key, placement.node)
    kept = [p for p in record.placements if (p.pool, p.key, p.node) != same]
    # A new list: profiles that were made before keep theirs.
    record.placements = [*kept, placement][-MAX_PLACEMENTS:]


def keep_placement(node: CUDAGraphNode) -> None:
    """Tell the graph's record, if there is one, where a recording has its memory."""
    record = node.wrapped_function.record
    if record is None:
        return
    try:
        placement = placement_of(node, path_to(node))
    except Exception:
        compat.log.warning("no placement of %s", node.wrapped_function.label, exc_info=True)
        return
    if placement is not None:
        keep(record, placement)


def placed(
    graph: int,
    program: AllocationProgram,
    addresses: Mapping[int, int],
    input_of: Callable[[int], int | None] = lambda i: i,
) -> list[PlacedBlock]:
    """The storages of ``program`` that have an address, by address.

    Args:
        graph: id of the graph that runs.
        program: what it does.
        addresses: by number of the storage.
        input_of: from an input of the program to that of the graph, None if it is none.
    """
    out: list[PlacedBlock] = []
    open_: dict[int, PlacedBlock] = {}
    end = len(program.events) + 1

    def begin(storage: int, at: int, owner: str | None, line: int) -> None:
        s = program.storages[storage]
        inputs = tuple(g for i in s.inputs if (g := input_of(i)) is not None)
        open_[storage] = PlacedBlock(
            addresses[storage], s.nbytes, at, end, s.category, graph, owner, line, inputs
        )

    for s in program.storages:
        if s.at_entry and s.id in addresses:
            begin(s.id, 0, s.name or None, 0)
    for i, e in enumerate(program.events):
        if e.storage not in addresses:
            continue
        before = open_.pop(e.storage, None)
        if before is not None and before.begin < i + 1:
            out.append(replace(before, end=i + 1))
        if e.kind is not EventKind.FREE:
            begin(e.storage, i + 1, e.owner, e.line)
    return _sorted((*out, *open_.values()))


def placement_of(node: CUDAGraphNode, path: Sequence[CUDAGraphNode]) -> Placement | None:
    """The placement of a recording that knows its program, else None. ``path`` leads from the root
    to it."""
    function = node.wrapped_function
    record, program = function.record, node.program
    if record is None or program is None:
        return None
    blocks = _blocks(node, record, program)
    blocks += _held(path[:-1], node, {b.address for b in blocks if not b.begin})
    return Placement(
        pool=str(node.pool.device),
        key=function.key,
        node=node.number,
        segments=tuple((s.address, s.nbytes) for s in node.pool.segments()),
        lines=tuple(e.line for e in program.events),
        blocks=tuple(_sorted(blocks)),
    )


def _held(
    path: Sequence[CUDAGraphNode], node: CUDAGraphNode, passed: set[int]
) -> Iterable[PlacedBlock]:
    """Outputs of earlier recordings that lie there all the time, and are no inputs."""
    assert node.program is not None
    end = len(node.program.events) + 1
    for depth, (earlier, live) in enumerate(
        zip(path, node.recorded_liveness_before_graph, strict=False)
    ):
        made = _final_blocks(earlier)
        for r, alive in zip(node.path_weakrefs[depth], live, strict=True):
            if r is None or not alive or r.address in passed or r.address not in made:
                continue
            passed.add(r.address)
            yield replace(made[r.address], begin=0, end=end, node=earlier.number)


def _blocks(
    node: CUDAGraphNode, record: GraphRecord, program: AllocationProgram
) -> list[PlacedBlock]:
    addresses = dict(enumerate(node.addresses))
    return placed(record.id, program, addresses, node.wrapped_function.graph_input)


def _final_blocks(node: CUDAGraphNode) -> dict[int, PlacedBlock]:
    """What is there when a recording has run, by address."""
    record, program = node.wrapped_function.record, node.program
    if record is None or program is None:
        return {}
    blocks = _blocks(node, record, program)
    return {b.address: b for b in blocks if b.end == len(program.events) + 1}


def _sorted(blocks: Iterable[PlacedBlock]) -> list[PlacedBlock]:
    return sorted(blocks, key=lambda b: (b.address, b.begin))

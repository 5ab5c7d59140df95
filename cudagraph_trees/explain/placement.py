"""Placements, the addresses of a recording's blocks, for a profile. Pure data but for what is read
from a node."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

from memprof.profiler.model import (
    AllocationProgram,
    EventKind,
    GraphRecord,
    PlacedBlock,
    Placement,
)

from .. import _torch_compat as compat
from ..replay.node import CUDAGraphNode, path_to

MAX_PLACEMENTS = 16
"""Latest placements kept a graph: a function recorded again and again must not fill a file."""


_PLACE = operator.attrgetter("address", "begin")


def keep(record: GraphRecord, placement: Placement) -> None:
    """Add ``placement`` to the record; the one that it replaces goes, then the oldest."""
    same = (placement.pool, placement.key, placement.node)
    kept = [p for p in record.placements if (p.pool, p.key, p.node) != same]
    # A new list: profiles that were made before keep theirs.
    record.placements = [*kept, placement][-MAX_PLACEMENTS:]


def keep_placement(node: CUDAGraphNode) -> None:
    """Tell the graph's record, if there is one, where a recording that knows its program has its
    memory."""
    record = node.wrapped_function.record
    if record is None or node.program is None:
        return
    try:
        keep(record, _placement_of(node, node.program))
    except Exception:
        compat.log.warning("no placement of %s", node.wrapped_function.label, exc_info=True)


def placed(
    graph: int,
    program: AllocationProgram,
    addresses: Mapping[int, int],
    input_of: Callable[[int], int | None] = lambda i: i,
) -> list[PlacedBlock]:
    """The storages of ``program`` that have an address, by address. ``graph`` is the id of what
    runs, ``addresses`` are by number of the storage; ``input_of`` goes from an input of the
    program to that of the graph, None if it is none."""
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
    return sorted((*out, *open_.values()), key=_PLACE)


def _placement_of(node: CUDAGraphNode, program: AllocationProgram) -> Placement:
    blocks, end = _blocks(node), len(program.events) + 1
    passed = {b.address for b in blocks if not b.begin}
    # Outputs of earlier recordings that lie there all the time, and are no inputs.
    live = set(node.live_before)
    for earlier in path_to(node)[:-1]:
        last = 0 if earlier.program is None else len(earlier.program.events) + 1
        made = {b.address: b for b in _blocks(earlier) if b.end == last}
        for r in live.intersection(earlier.outputs_weakrefs):
            if r.address in made and r.address not in passed:
                passed.add(r.address)
                blocks.append(replace(made[r.address], begin=0, end=end, node=earlier.number))
    return Placement(
        pool=str(node.pool.device),
        key=node.wrapped_function.key,
        node=node.number,
        segments=tuple((s.address, s.nbytes) for s in node.pool.segments()),
        lines=tuple(e.line for e in program.events),
        blocks=tuple(sorted(blocks, key=_PLACE)),
    )


def _blocks(node: CUDAGraphNode) -> list[PlacedBlock]:
    """Placed blocks of one recording alone; none where its program is unknown."""
    function, program = node.wrapped_function, node.program
    if function.record is None or program is None:
        return []
    addresses = dict(enumerate(node.addresses))
    return placed(function.record.id, program, addresses, function.graph_input)

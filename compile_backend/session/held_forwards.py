"""Forwards of compiled code that nobody ran backward, and whose saved memory is still held.

Note [Forwards without a backward]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The call log says which forwards had no backward, and not whether anybody holds what they saved: an
evaluation that has forgotten ``torch.no_grad()`` drops it. So where the log has many of a graph,
autograd's graphs are walked from all tensors (``holders.py``), once, at the end of a session, and
the operations of the graph's class that have saved something are counted. Only these are reported.

Whether they came step after step, and are not the layers of the last step, the log tells: the
backwards of the same graph are its steps, or where it has none its forwards are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from memprof.profiler.live.growth import LEAST, rate_of
from memprof.profiler.live.pairing import forwards_that_wait
from memprof.profiler.live.programs import PERSISTENT
from memprof.profiler.model import (
    Category,
    GraphKind,
    GraphRecord,
    Growth,
    GrowthSource,
    Held,
    Profile,
    Role,
)
from memprof.profiler.sources.allocator.holders import HeldGraphs, held_graphs

from .. import _torch_compat


def may_wait(graphs: Iterable[GraphRecord]) -> bool:
    """Tells whether so many forwards can be without a backward that it is worth to look at each
    call."""
    calls = dict.fromkeys(GraphKind, 0)
    for graph in graphs:
        calls[graph.kind] += graph.calls
    return calls[GraphKind.FORWARD] - calls[GraphKind.BACKWARD] >= LEAST


def held_forwards(profile: Profile) -> list[Growth]:
    """Growth by graphs whose forwards had no backward and are held, most bytes a step first.

    Args:
        profile: of the process, with its call log.
    """
    waiting = forwards_that_wait(profile)
    waiting = {g: calls for g, calls in waiting.items() if len(calls) >= LEAST}
    if not waiting:
        return []
    found = held_graphs(_torch_compat.graph_of_operation)
    grown = [
        _growth(profile, profile.graph(graph), calls, found[graph])
        for graph, calls in waiting.items()
        if graph in found
    ]
    return sorted((g for g in grown if g is not None), key=lambda g: -g.a_step)


def _growth(
    profile: Profile, graph: GraphRecord, waiting: list[int], held: HeldGraphs
) -> Growth | None:
    calls = sum(id == graph.id for id in profile.calls.graph)
    # Those that are held are the latest, as far as it can be told.
    kept = waiting[-held.operations :]
    each = held.nbytes // held.operations
    rate = rate_of(dict.fromkeys(kept, each), calls)
    if rate is None:
        return None
    parts = _parts(graph, held.operations)
    frame = next((p.frame for p in parts if p.frame is not None), None)
    return Growth(
        GrowthSource.COMPILED,
        held.device,
        held.nbytes,
        rate.a_step,
        f"call of {graph.label}",
        rate.since,
        calls,
        held.holder,
        frame,
        parts,
    )


def _parts(graph: GraphRecord, times: int) -> tuple[Held, ...]:
    """Bytes that ``times`` forwards have saved, by the FX node that made them, most first."""
    found: Counter[str] = Counter()
    for program in graph.programs[:1]:
        for live in program.surviving():
            outputs = [graph.outputs[i] for i in live.storage.outputs if i < len(graph.outputs)]
            if live.storage.category in PERSISTENT or not any(
                v.role is Role.SAVED_FOR_BACKWARD for v in outputs
            ):
                continue
            buffer = graph.buffers.get(live.owner or "")
            node = (buffer.primary if buffer is not None else None) or live.owner or ""
            found[node] += live.storage.nbytes
    frames = {name: node.frame for name, node in graph.nodes.items()}
    return tuple(
        Held(Category.ACTIVATION, nbytes * times, times, frame=frames.get(node), nodes=node)
        for node, nbytes in found.most_common()
        if nbytes
    )

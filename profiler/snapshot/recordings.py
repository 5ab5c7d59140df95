"""What of a snapshot's private pools replays of CUDA graphs write to, by the profile of that run.

The allocator saw the memory of a graph once, when it was recorded: afterwards most of its pool is
free in a snapshot, and is none the less what each replay uses. A profile has the addresses of graph
trees' recordings (``GraphRecord.placements``). Another process has other addresses; so a recording
counts only where every segment that its pool had then is one of the snapshot's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memprof.profiler.device.account import name_of_pool
from memprof.profiler.device.sharing import clipped, merged, total

from ..model import Placement, Profile
from .shape import Json, Snapshot


@dataclass(frozen=True, slots=True)
class Replayed:
    """A private pool that replays write to.

    Attributes:
        device: its number.
        pool: as ``PoolShare.name``.
        reserved: bytes of its segments.
        free: bytes of these in no block.
        used: bytes that a replay writes to, those of several graphs once.
        graphs: labels of the recorded graphs.
    """

    device: int
    pool: str
    reserved: int
    free: int
    used: int
    graphs: tuple[str, ...]


def replayed(snapshot: Snapshot, profiles: Iterable[Profile]) -> list[Replayed]:
    """The private pools of a snapshot that recordings of some profiles lie in."""
    recorded = [
        (graph.label, placement)
        for profile in profiles
        for graph in profile.graphs
        for placement in graph.placements
        if placement.node is not None
    ]
    found = []
    pools: dict[tuple[int, tuple[int, ...]], list[Json]] = {}
    for segment in snapshot.segments:
        pool = tuple(segment["segment_pool_id"])
        if pool != (0, 0):
            pools.setdefault((segment["device"], pool), []).append(segment)
    for (device, pool), segments in pools.items():
        here = [
            (label, placement)
            for label, placement in recorded
            if placement.pool == f"cuda:{device}" and _lies_in(placement, segments)
        ]
        if not here:
            continue
        used = ((b.address, b.address + b.nbytes) for _, p in here for b in p.blocks)
        reserved = ((s["address"], s["address"] + s["total_size"]) for s in segments)
        blocks = [b for s in segments for b in s["blocks"]]
        found.append(
            Replayed(
                device,
                name_of_pool((pool[0], pool[1])),
                sum(s["total_size"] for s in segments),
                sum(b["size"] for b in blocks if b["state"] == "inactive"),
                total(clipped(merged(used), merged(reserved))),
                tuple(dict.fromkeys(label for label, _ in here)),
            )
        )
    return found


def _lies_in(placement: Placement, segments: Sequence[Json]) -> bool:
    sizes = {s["address"]: s["total_size"] for s in segments}
    return bool(placement.segments) and all(
        sizes.get(address, 0) >= nbytes for address, nbytes in placement.segments
    )

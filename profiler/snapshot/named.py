"""The account of a snapshot, with the names that profiles of the same code have, and what of its
private pools replays of CUDA graphs write to.

The allocator saw the memory of a graph once, when it was recorded: afterwards most of its pool is
free in a snapshot, and is none the less what each replay uses. A profile has the addresses of graph
trees' recordings (``GraphRecord.placements``). Another process has other addresses; so a recording
counts only where every segment that its pool had then is one of the snapshot's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from memprof.profiler.device.account import name_of_pool
from memprof.profiler.model.address_ranges import clipped, merged, total

from ..errors import ProfileForeignError
from ..file import read_profiles
from ..model import Placement, Profile
from ..reading import StrPath
from ..report.format import format_bytes
from .enrich import enrich
from .names import CodeNames
from .reading import read_snapshot
from .shape import Json, Snapshot
from .to_model import profile_of


def read_named_snapshot(path: StrPath, by: Sequence[StrPath]) -> Profile:
    """The accounts of a snapshot, as ``read_profiles`` has them, with FX nodes, modules and roles.

    Args:
        path: of the snapshot.
        by: paths of profiles.

    Raises:
        ProfileError: one of them cannot be read, or is something else.
    """
    snapshot = read_snapshot(path)
    profiles = read_names(by)
    enrich(snapshot, CodeNames(profiles))
    found = profile_of(snapshot, os.fspath(path))
    for device, what in replayed(snapshot, profiles):
        for account in found.accounts:
            if account.device == device:
                account.notes.append(what)
    return found


def read_names(paths: Sequence[StrPath]) -> list[Profile]:
    """Profiles that are to name what generated code asked for.

    Raises:
        ProfileError: one cannot be read.
        ProfileForeignError: one is a snapshot.
    """
    found: list[Profile] = []
    for path in paths:
        profiles = read_profiles(path)
        if any(a.snapshot for p in profiles for a in p.accounts):
            raise ProfileForeignError(
                path,
                "a snapshot, which names nothing: give the profile of a run of the same code by "
                "torch.compile(backend='memprof')",
            )
        found += profiles
    return found


def replayed(snapshot: Snapshot, profiles: Iterable[Profile]) -> list[tuple[str, str]]:
    """Of each private pool of a snapshot that recordings of some profiles lie in its device, and
    what replays use of it, in a line."""
    recorded = [
        (graph.label, placement)
        for profile in profiles
        for graph in profile.graphs
        for placement in graph.placements
    ]
    pools: dict[tuple[int, int, int], list[Json]] = {}
    for segment in snapshot.segments:
        first, second = segment["segment_pool_id"]
        if (first, second) != (0, 0):
            pools.setdefault((segment["device"], first, second), []).append(segment)
    found = []
    for (number, *pool), segments in pools.items():
        device = f"cuda:{number}"
        here = [(n, p) for n, p in recorded if p.pool == device and _lies_in(p, segments)]
        if not here:
            continue
        written = merged((b.address, b.address + b.nbytes) for _, p in here for b in p.blocks)
        ranges = merged((s["address"], s["address"] + s["total_size"]) for s in segments)
        used, reserved = total(clipped(written, ranges)), sum(s["total_size"] for s in segments)
        blocks = [b for s in segments for b in s["blocks"]]
        free = sum(b["size"] for b in blocks if b["state"] == "inactive")
        labels = list(dict.fromkeys(label for label, _ in here))
        graphs = ", ".join(labels[:4]) + (" and others" if len(labels) > 4 else "")
        said = (
            f"pool {name_of_pool((pool[0], pool[1]))}: replays of {graphs} write to "
            f"{format_bytes(used)} of its {format_bytes(reserved)}; {format_bytes(free)} are free "
            "by the allocator"
        )
        found.append((device, said))
    return found


def _lies_in(placement: Placement, segments: Sequence[Json]) -> bool:
    sizes = {s["address"]: s["total_size"] for s in segments}
    return bool(placement.segments) and all(
        sizes.get(address, 0) >= nbytes for address, nbytes in placement.segments
    )

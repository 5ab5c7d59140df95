"""The account of a snapshot, with the names that profiles of the same code have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import ProfileForeignError
from ..file import read_profiles
from ..model import Profile
from ..reading import StrPath
from ..report.format import format_bytes
from .enrich import enrich
from .names import CodeNames
from .reading import read_snapshot
from .recordings import Replayed, replayed
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
    for pool in replayed(snapshot, profiles):
        for account in found.accounts:
            if account.device == f"cuda:{pool.device}":
                account.notes.append(in_words(pool))
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


def in_words(pool: Replayed) -> str:
    """What replays use of a pool, in a line."""
    graphs = ", ".join(pool.graphs[:4]) + (" and others" if len(pool.graphs) > 4 else "")
    return (
        f"pool {pool.pool}: replays of {graphs} write to {format_bytes(pool.used)} of its "
        f"{format_bytes(pool.reserved)}; {format_bytes(pool.free)} are free by the allocator"
    )

"""Snapshots beside profiles: which of both a file is, and the account of a snapshot with the names
that profiles of the same code have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from memprof.profiler.file.profile_file import profiles_of
from memprof.profiler.file.reading import StrPath, read_file
from memprof.profiler.model import Profile
from memprof.profiler.support.errors import ProfileForeignError

from .enrich import enrich
from .names import CodeNames
from .reading import decode_snapshot, is_pickle, read_snapshot
from .to_model import profile_of


def read_profiles_or_snapshot(path: StrPath) -> list[Profile]:
    """The profiles of a profile file; of a snapshot one with the accounts of its devices. The
    content of the file tells which it is.

    Raises:
        ProfileError: it cannot be read, or is neither.
    """
    data, name = read_file(path), os.fspath(path)
    if is_pickle(data):
        return [profile_of(decode_snapshot(data, name), name)]
    return profiles_of(data, path)


def read_named_snapshot(path: StrPath, by: Sequence[StrPath]) -> Profile:
    """The accounts of a snapshot, as ``read_profiles`` has them, with FX nodes, modules and roles.

    Args:
        path: of the snapshot.
        by: paths of profiles.

    Raises:
        ProfileError: one of them cannot be read, or is something else.
    """
    snapshot = read_snapshot(path)
    enrich(snapshot, CodeNames(read_names(by)))
    return profile_of(snapshot, os.fspath(path))


def read_names(paths: Sequence[StrPath]) -> list[Profile]:
    """Profiles that are to name what generated code asked for.

    Raises:
        ProfileError: one cannot be read.
        ProfileForeignError: one is a snapshot.
    """
    found: list[Profile] = []
    for path in paths:
        data = read_file(path)
        if is_pickle(data):
            raise ProfileForeignError(
                path,
                "a snapshot, which names nothing: give the profile of a run of the same code by "
                "torch.compile(backend='memprof')",
            )
        found += profiles_of(data, path)
    return found

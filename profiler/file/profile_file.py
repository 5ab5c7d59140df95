"""Profile files: what they are read and written by; docs/profile-format.md describes them.

A file has the profiles of one process or several, whole or as far as they have come. It is read by
content, whatever its name.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec

from memprof.profiler.model import FORMAT, SCHEMA_VERSION, Profile
from memprof.profiler.support import errors
from memprof.profiler.support.json_text import DIALECT
from memprof.profiler.support.text import visible
from memprof.profiler.support.writing import StrPath, write_whole

from .decoding import documents
from .encoding import encode_profile as encode_profile
from .frames import MAGIC, may_begin
from .reading import read_file

_GZIP = b"\x1f\x8b"
_JSON = re.compile(rb'\s*\{\s*"format"\s*:\s*"memprof-')
"""First bytes of ``memprof export -f json``, and of files of memprof 0.1.0."""
_LOGGED = 5
"""Most lines of ``Profile.left_out`` that are logged."""

_WAY_OUT = "say whose is meant (on the command line --rank), or use `read_profiles`"

log = logging.getLogger("memprof")


def single_profile(
    profiles: Sequence[Profile], path: StrPath | None, way_out: str = _WAY_OUT
) -> Profile:
    """The profile of a file that holds one; ``way_out`` says what to do where there are several.

    Raises:
        ProfileError: there are.
    """
    if len(profiles) > 1:
        ranks = ", ".join(str(p.process.rank) if p.process else "?" for p in profiles)
        raise errors.ProfileError(
            path, f"it holds {len(profiles)} profiles, of ranks {ranks}: {way_out}"
        )
    return profiles[0]


def decode_profiles(data: bytes, path: StrPath | None = None) -> list[Profile]:
    """All profiles that the content of a file holds: several if it is a merged file, else one.

    What cannot be read of one is named in ``Profile.left_out``, see Note [What damage costs].

    Raises:
        ProfileError: as ``read_profile``, but for those of the file itself.
    """
    name = None if path is None else os.fspath(path)
    _check_kind(data, name)
    found: list[Profile] = []
    unusable: list[str] = []
    for document in documents(data, name):
        profile = document.profile()
        rest = (profile.tracker, profile.dataflow, profile.accounts, profile.graph_pools)
        if document.left_out and not any((profile.graphs, profile.calls, *rest)):
            unusable = document.left_out
        else:
            found.append(profile)
    if not found:
        raise errors.ProfileInvalidError(
            name,
            f"not a valid profile, and nothing of it can be used: not read is {unusable[0]}; see "
            "docs/profile-format.md",
        )
    found[-1].left_out += unusable
    return found


def _check_kind(data: bytes, name: str | None) -> None:
    if MAGIC in data:
        return
    if may_begin(data):
        raise errors.ProfileInvalidError(
            name, "truncated: the file is empty; copy it again or take the profile again"
        )
    what = f"a profile begins with the bytes {MAGIC!r}"
    if data.startswith(_GZIP):
        what = "it is packed by gzip: unpack it (gunzip)"
    elif _JSON.match(data):
        what = (
            "JSON that `memprof export -f json` makes for other programs, or a file of memprof "
            "0.1.0: give the .memprof file of the run, or take the profile again"
        )
    raise errors.ProfileInvalidError(name, f"not a memprof profile: {what}")


def read_profile(path: StrPath) -> Profile:
    """Read and check a profile file.

    What cannot be read of it is named in ``Profile.left_out`` and logged.

    Raises:
        ProfileUnreadableError: it is missing, no regular file, may not be read, or is, or unpacks
            to, more than Note [How much is read] allows.
        ProfileInvalidError: it is something else, of another schema version, or nothing of it can
            be used.
        ProfileError: it holds several profiles, see ``read_profiles``.
    """
    return single_profile(read_profiles(path), path)


def read_profiles(path: StrPath) -> list[Profile]:
    """Read and check a file of one profile or several (``memprof export -f memprof``).

    Raises:
        ProfileError: as ``read_profile``, but that several are none.
    """
    profiles = decode_profiles(read_file(path), path)
    for profile in profiles:
        for line in profile.left_out[:_LOGGED]:
            log.warning("%s", visible(f"{os.fspath(path)}: not read: {line}"))
    return profiles


def write_profile(profile: Profile, path: StrPath) -> None:
    """Write a profile file, whole or not at all; see ``write_whole`` and ``check_name``.

    Raises:
        ProfileInvalidError: ``profile`` has no JSON form.
        ProfileNotWritableError: the operating system refuses.
    """
    write_profiles([profile], path)


def write_profiles(profiles: Sequence[Profile], path: StrPath) -> None:
    """Write the profiles of several processes into one file; see ``write_profile``."""
    check_name(path)
    write_whole(path, b"".join(map(encode_profile, profiles)), "the profile")


def check_name(path: StrPath) -> None:
    """Refuse a name that promises JSON or gzip, which a profile is not any more.

    Raises:
        ProfileNotWritableError: ``path`` ends in ``.json`` or ``.gz``.
    """
    if os.fspath(path).endswith((".json", ".gz")):
        raise errors.ProfileNotWritableError(
            path,
            "a profile is neither JSON nor gzip: let its name end in .memprof; "
            "`memprof export -f json` makes JSON of it",
        )


def profile_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a profile as ``memprof export -f json`` writes it."""
    schema = msgspec.json.schema(Profile)
    definition = schema["$defs"]["Profile"]
    definition["properties"]["format"] = {"const": FORMAT}
    definition["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    definition["required"] = [f.name for f in fields(Profile)]
    return {"$schema": DIALECT, "title": f"{FORMAT} {SCHEMA_VERSION}", **schema}

"""Profile files: what they are read and written by; docs/profile-format.md describes them.

A file has the profiles of one process or several, whole or as far as they have come. It is read by
content, whatever its name.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec

from memprof.profiler.model import FORMAT, SCHEMA_VERSION, Profile
from memprof.profiler.support import errors
from memprof.profiler.support.text import visible
from memprof.profiler.support.writing import write_whole

from .decoding import documents
from .encoding import encode_profile as encode_profile
from .frames import MAGIC, may_begin
from .reading import read_file

StrPath = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
_JSON = re.compile(
    rb'\s*\{\s*"format"\s*:\s*"memprof-(?:profile|stream|tracker)"'
    rb'(?:\s*,\s*"schema_version"\s*:\s*(\d+))?'
)
"""First bytes of files of memprof 0.1.0, unpacked, and of ``memprof export -f json``."""
_BEGIN = 4096
"""Number of first bytes by which a file without frames is recognized."""
_OTHERS = (
    (
        rb'\A\s*(?:\{\s*"(?:schemaVersion|traceEvents|displayTimeUnit)"|\[\s*\{\s*"(?:ph|name|cat)")',
        "a trace for Chrome's tracer or Perfetto, which shows it; of a run of torch.profiler "
        "memprof reads the memory in Python, where it was made: session.add_dataflow(prof), "
        "docs/dataflow.md",
    ),
    (
        rb"\A\s*(?i:<!doctype html|<html)",
        "a page: open it in a browser, or give the profile that it was made of",
    ),
    (
        rb"\APK\x03\x04",
        "an archive, such as torch.save writes: give a profile",
    ),
    (
        rb"\A\x80",
        "a pickle: pytorch.org/memory_viz shows a snapshot of torch's allocator; memprof names the "
        "same bytes with memprof.profile(PATH, eager=True)",
    ),
    (
        rb"\A#!|(?m:^import [\w.]+(?: as \w+)?$|^from [\w.]+ import )",
        "a program: memprof run FILE makes a profile of its run, and so does "
        "`with memprof.profile(PATH)` in it",
    ),
)
"""First bytes of other files that people take for profiles, and advice on each in words."""
_LOGGED = 5
"""Most lines of ``Profile.left_out`` that are logged."""

_WAY_OUT = "say whose is meant (on the command line --rank), or use `read_profiles`"

log = logging.getLogger("memprof")


def decode_profile(data: bytes, path: StrPath | None = None) -> Profile:
    """The profile that the content of a file holds.

    Raises:
        ProfileError: it holds several; others as ``decode_profiles``.
    """
    return single_profile(decode_profiles(data, path), path)


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
    # One of which nothing can be used costs the others nothing.
    found: list[Profile] = []
    failed: list[errors.ProfileError] = []
    for document in documents(data, name):
        try:
            profile = document.profile()
            rest = (profile.tracker, profile.dataflow, profile.accounts, profile.graph_pools)
            if document.left_out and not any((profile.graphs, profile.calls, *rest)):
                raise errors.ProfileInvalidError(
                    name,
                    f"not a valid profile, and nothing of it can be used: not read is "
                    f"{document.left_out[0]}; see docs/profile-format.md",
                )
            found.append(profile)
        except errors.ProfileInvalidError as e:
            failed.append(e)
    if not found:
        raise failed[0]
    found[0].left_out += [f"the profile of another process: {e}" for e in failed]
    return found


def _check_kind(data: bytes, name: str | None) -> None:
    if MAGIC in data:
        return
    if may_begin(data):
        raise errors.ProfileInvalidError(
            name, "truncated: the file is empty; copy it again or take the profile again"
        )
    begin = data[:_BEGIN]
    if data.startswith(_GZIP):
        try:
            begin = zlib.decompressobj(wbits=31).decompress(data[:4096], _BEGIN)
        except zlib.error:
            begin = b""
    if begin.startswith(MAGIC):
        raise errors.ProfileInvalidError(name, "a profile packed by gzip: unpack it first (gunzip)")
    json = _JSON.match(begin)
    if json is not None and json[1] == str(SCHEMA_VERSION).encode():
        raise errors.ProfileInvalidError(
            name,
            "JSON of a profile, which `memprof export -f json` makes for other programs: give the "
            "profile that it was made of",
        )
    if json is not None:
        raise errors.ProfileInvalidError(
            name,
            "written by memprof 0.1.0, whose files this memprof does not read: take the profile "
            "again, or read it with memprof 0.1.0",
        )
    matches = (description for pattern, description in _OTHERS if re.search(pattern, begin))
    description = next(matches, f"a profile begins with the bytes {MAGIC!r}")
    raise errors.ProfileInvalidError(name, f"not a memprof profile: {description}")


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
    return profiles_of(read_file(path), path)


def profiles_of(data: bytes, path: StrPath) -> list[Profile]:
    """``read_profiles`` of a file whose content has been read."""
    profiles = decode_profiles(data, path)
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
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT} {SCHEMA_VERSION}",
        **schema,
    }

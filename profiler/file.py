"""Profile files: a ``Profile`` as JSON, one document a file. The schema is described in
``docs/profile-format.md``.

Note [What a profile file looks like]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Plain JSON without whitespace, field by field the dataclasses of ``profiler.model``;
gzip where the path ends in ``.gz`` (provenance repeats itself: 10 to 20 times smaller).
``format`` and ``schema_version`` come first, so that a reader, and a person with ``head``,
knows from the first bytes what it is, even of a file that was cut short.

Readers look at these two before anything else. Within a schema version fields may be
added: readers ignore what they do not know. Anything that would mislead such a reader
(a changed meaning, a removed field) raises ``SCHEMA_VERSION``.

A path that ends in ``.memprof`` is a stream of such a document's parts, see
Note [What a streamed file looks like]; it can hold the profiles of several processes.
Readers tell the two apart by content, as they do the run-time tracker's own file and its journal,
see Note [The tracker's file and the profile] and Note [The journal].
"""

from __future__ import annotations

import dataclasses
import gzip
import logging
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ._header import check_version
from ._json import to_json
from ._text import visible
from .errors import (
    ProfileError,
    ProfileForeignError,
    ProfileInvalidError,
    ProfileMergedError,
    ProfileTruncatedError,
    ProfileVersionError,
)
from .model import FORMAT, SCHEMA_VERSION, Profile
from .reading import read_file, unpack
from .repair import Notes, repair
from .salvage import UNREADABLE, FromJson, FromObjects, salvage
from .stream import STREAM_HEAD, encode_stream
from .stream_reader import Document, documents
from .tracker.document import decode_document, is_document
from .tracker.journal import JOURNAL_SUFFIX
from .tracker.read_journal import decode_journal, is_journal
from .writing import check_writable, create_for_streaming, replacing, write_whole

__all__ = [
    "check_writable",
    "create_for_streaming",
    "decode_profile",
    "decode_profiles",
    "encode_profile",
    "profile_schema",
    "read_profile",
    "read_profiles",
    "replacing",
    "streams",
    "write_profile",
    "write_profiles",
    "write_whole",
]

StrPath = str | os.PathLike[str]

_HEAD = f'{{"format":"{FORMAT}"'.encode()
_GZIP_MAGIC = b"\x1f\x8b"
# Absent in files of older memprof 0.1: everything else must be there, or an empty document
# with the right header would read as an empty profile.
_OPTIONAL = {
    "released",
    "process",
    "perf_origin_ns",
    "tracker",
    "dataflow",
    "accounts",
    "complete",
    "left_out",
}
_LOGGED = 5
"""Parts that were left out and are logged one by one; the profile names all."""

log = logging.getLogger("memprof")
_STREAM_SUFFIX = ".memprof"


def streams(path: StrPath) -> bool:
    """Whether a file of this name is a stream: it ends in ``.memprof``."""
    return os.fspath(path).endswith(_STREAM_SUFFIX)


def encode_profile(profile: Profile) -> bytes:
    """``profile`` as JSON, UTF-8.

    Raises:
        ProfileInvalidError: something in it has no JSON form.
    """
    try:
        return to_json(profile)
    except (TypeError, ValueError, RecursionError) as e:
        raise _no_json(e) from e


def _no_json(e: Exception) -> ProfileInvalidError:
    return ProfileInvalidError(
        None, f"this profile has no JSON form: {e}; `metadata` must hold JSON values only"
    )


def decode_profile(data: bytes, path: StrPath | None = None) -> Profile:
    """The profile that ``data`` (JSON, JSON in gzip, or a stream) holds.

    Raises:
        ProfileTruncatedError, ProfileForeignError, ProfileVersionError, ProfileInvalidError,
        ProfileTooLargeError: it holds none; ``path`` is named in the message.
        ProfileMergedError: it holds several.
    """
    profiles = decode_profiles(data, path)
    if len(profiles) > 1:
        ranks = ", ".join(str(p.process.rank) if p.process else "?" for p in profiles)
        raise ProfileMergedError(
            path,
            f"it holds {len(profiles)} profiles, of ranks {ranks}: say whose is meant (on the "
            "command line --rank), or use `read_profiles`",
        )
    return profiles[0]


def decode_profiles(data: bytes, path: StrPath | None = None) -> list[Profile]:
    """All profiles that ``data`` holds: several if it is a merged file, else one.

    What of them cannot be used is left out and named in ``Profile.left_out``, see Note [What a
    contradiction costs] and Note [What damage costs].

    Raises:
        ProfileTruncatedError, ProfileForeignError, ProfileVersionError, ProfileInvalidError,
        ProfileTooLargeError: it holds none; ``path`` is named in the message.
    """
    name = None if path is None else os.fspath(path)
    try:
        return _decode(data, name)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise _damaged(e, name) from e
    except RecursionError as e:
        raise _damaged("it is nested more deeply than any profile", name) from e


def _damaged(what: object, name: str | None) -> ProfileInvalidError:
    return ProfileInvalidError(name, f"damaged: {what}; copy it again or take the profile again")


def _decode(data: bytes, name: str | None) -> list[Profile]:
    zipped = data[:2] in (_GZIP_MAGIC, _GZIP_MAGIC[:1])
    if zipped and _head(data, len(STREAM_HEAD)) == STREAM_HEAD:
        return _from_stream(data, name)
    if zipped:
        data = unpack(data, name)
    notes = Notes()
    if is_document(data):
        profile = decode_document(data, name, notes)
    elif is_journal(data):
        profile = decode_journal(data, name)
    else:
        found = _check_header(data, name)
        try:
            profile = msgspec.json.decode(data, type=Profile)
        except UNREADABLE:
            profile = salvage(found, FromJson(), notes)
    return [_finished(profile, notes, name)]


def _from_stream(data: bytes, name: str | None) -> list[Profile]:
    """The profiles of a stream. One of which nothing can be used costs the others nothing."""
    found: list[Profile] = []
    failed: list[ProfileError] = []
    for document in documents(data, name):
        try:
            found.append(_of_document(document, name))
        except (ProfileInvalidError, ProfileVersionError) as e:
            failed.append(e)
    if not found:
        raise failed[0]
    found[0].left_out += [f"the profile of another process: {e}" for e in failed]
    return found


def _of_document(document: Document, name: str | None) -> Profile:
    if document.refused is not None:
        raise document.refused
    notes = document.left_out
    if not notes:
        _check_complete(document.fields, name)
    document.fields["format"] = FORMAT
    try:
        profile = msgspec.convert(document.fields, Profile, str_keys=True)
    except UNREADABLE:
        profile = salvage(document.fields, FromObjects(), notes)
    return _finished(profile, notes, name)


def _finished(profile: Profile, notes: Notes, name: str | None) -> Profile:
    """``profile`` without what contradicts itself, if anything is left of it."""
    repair(profile, notes)
    profile.left_out += notes.lines()
    parts = (
        profile.graphs,
        len(profile.calls),
        profile.ledger,
        profile.tracker,
        profile.dataflow,
        profile.accounts,
    )
    if notes and not any(parts):
        raise ProfileInvalidError(
            name,
            f"not a valid profile, and nothing of it can be used: {profile.left_out[0]}; see "
            "docs/profile-format.md",
            notes.where,
        )
    return profile


def _head(data: bytes, length: int) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(data[:4096], length)
    except zlib.error:
        return b""


def read_profile(path: StrPath) -> Profile:
    """Read and check a profile file.

    What of it cannot be used is left out, named in ``Profile.left_out`` and logged.

    Raises:
        ProfileUnreadableError: it is missing, no regular file, or may not be read.
        ProfileTooLargeError: it is, or unpacks to, more than Note [How much is read] allows.
        ProfileTruncatedError: it ends too early.
        ProfileForeignError: it is something else.
        ProfileVersionError: it has a schema version other than ours.
        ProfileInvalidError: it is damaged, and nothing of it can be used.
        ProfileMergedError: it holds several profiles, see ``read_profiles``.
    """
    profile = decode_profile(_read(path), path)
    _warn(path, [profile])
    return profile


def read_profiles(path: StrPath) -> list[Profile]:
    """Read and check a file of one profile or several (``memprof merge``).

    Raises:
        ProfileError: as ``read_profile``, but for ``ProfileMergedError``.
    """
    profiles = decode_profiles(_read(path), path)
    _warn(path, profiles)
    return profiles


def _read(path: StrPath) -> bytes:
    # The tracker that will write the file runs, or was killed: then there is its journal.
    return read_file(path, f"{os.fspath(path)}{JOURNAL_SUFFIX}")


def _warn(path: StrPath, profiles: Sequence[Profile]) -> None:
    """Log what was left out of each profile of a file, a line each."""
    for profile in profiles:
        for line in profile.left_out[:_LOGGED]:
            log.warning("%s", visible(f"{os.fspath(path)}: left out: {line}"))
        if (more := len(profile.left_out) - _LOGGED) > 0:
            log.warning("%s", visible(f"{os.fspath(path)}: left out: {more} more parts"))


def write_profile(
    profile: Profile,
    path: StrPath,
    *,
    new: bool = False,
    unless: Callable[[], bool] | None = None,
) -> None:
    """Write a profile file, whole or not at all; see ``write_whole``.

    Args:
        profile: what to write.
        path: where to; gzip if it ends in ``.gz``, a stream if in ``.memprof``. Its folder
            must exist. A symbolic link is followed.
        new: write it only where there is nothing yet.
        unless: what is at ``path`` stays if this, asked at the last instant, says True.

    Raises:
        ProfileInvalidError: ``profile`` has no JSON form.
        ProfileExistsError: ``new``, and there is something at ``path``, if only a link; or
            ``unless`` says so.
        ProfileNotWritableError: the operating system refuses.
    """
    if streams(path):
        data = _encoded_stream([profile])
    else:
        data = encode_profile(profile)
        if os.fspath(path).endswith(".gz"):
            data = gzip.compress(data, compresslevel=6, mtime=0)
    write_whole(path, data, "the profile", new=new, unless=unless)


def write_profiles(profiles: Sequence[Profile], path: StrPath) -> None:
    """Write several profiles into one stream, whole or not at all.

    Args:
        profiles: one a process.
        path: where to, whatever it ends in.

    Raises:
        ProfileInvalidError: one has no JSON form.
        ProfileNotWritableError: the operating system refuses.
    """
    write_whole(path, _encoded_stream(profiles), "the profile")


def _encoded_stream(profiles: Sequence[Profile]) -> bytes:
    try:
        return b"".join(map(encode_stream, profiles))
    except (TypeError, ValueError, RecursionError) as e:
        raise _no_json(e) from e


def profile_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a profile document."""
    schema = msgspec.json.schema(Profile)
    definition = schema["$defs"]["Profile"]
    definition["properties"]["format"] = {"const": FORMAT}
    definition["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    definition["required"] = [
        f.name for f in dataclasses.fields(Profile) if f.name not in _OPTIONAL
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT} {SCHEMA_VERSION}",
        **schema,
    }


def _check_header(data: bytes, path: str | None) -> dict[str, msgspec.Raw]:
    """The fields of a document whose ``format`` and version are ours, not decoded."""
    if not data:
        raise ProfileTruncatedError(
            path, "truncated: the file is empty; copy it again or take the profile again"
        )
    ours = data.startswith(_HEAD) or (len(data) < len(_HEAD) and _HEAD.startswith(data))
    try:
        # Raw: the structure is checked and no value is built, which matters for large files.
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as e:
        raise ProfileForeignError(path, f"not a memprof profile: {e}{_WHAT}") from e
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        if not ours:
            raise ProfileForeignError(path, f"not JSON ({e}), so no memprof profile{_WHAT}") from e
        if not data.rstrip().endswith(b"}") or "truncated" in str(e):
            raise ProfileTruncatedError(
                path,
                f"truncated: it ends in the middle of the document, after {len(data):,} bytes; "
                "copy it again or take the profile again (memprof itself writes files whole "
                "or not at all)",
            ) from e
        raise ProfileInvalidError(
            path, f"damaged: {e}; copy it again or take the profile again"
        ) from e
    if "format" not in found:
        raise ProfileForeignError(path, f"not a memprof profile: JSON without a `format`{_WHAT}")
    given = _plain(found["format"])
    if given != FORMAT:
        raise ProfileForeignError(
            path, f"not a memprof profile: its `format` is {given!r:.60}{_WHAT}"
        )
    check_version(_plain(found.get("schema_version")), _plain(found.get("memprof")), path)
    _check_complete(found, path)
    return found


def _check_complete(found: Mapping[str, Any], path: str | None) -> None:
    missing = [
        f.name
        for f in dataclasses.fields(Profile)
        if f.name not in found and f.name not in _OPTIONAL
    ]
    if missing:
        raise ProfileInvalidError(
            path,
            f"not a valid profile: {', '.join(missing)} missing - at `$`; "
            "see docs/profile-format.md",
        )


def _plain(raw: msgspec.Raw | None) -> Any:
    try:
        return None if raw is None else msgspec.json.decode(raw)
    except UNREADABLE:
        return "something that cannot be read"


_WHAT = f": a profile is a JSON object that begins with {_HEAD.decode()}"

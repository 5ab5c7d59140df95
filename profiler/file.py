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

import contextlib
import dataclasses
import errno
import gzip
import os
import secrets
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ._header import check_version
from ._json import to_json
from .errors import (
    ProfileForeignError,
    ProfileInvalidError,
    ProfileMergedError,
    ProfileNotWritableError,
    ProfileTruncatedError,
    ProfileUnreadableError,
)
from .model import FORMAT, SCHEMA_VERSION, Profile
from .stream import STREAM_HEAD, documents, encode_stream
from .tracker.document import decode_document, is_document
from .tracker.journal import JOURNAL_SUFFIX, decode_journal, is_journal
from .validate import validate

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
_OPTIONAL = {"released", "process", "perf_origin_ns", "tracker", "dataflow", "complete"}
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
        ProfileTruncatedError, ProfileForeignError, ProfileVersionError, ProfileInvalidError:
            it holds none; ``path`` is named in the message.
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

    Raises:
        ProfileTruncatedError, ProfileForeignError, ProfileVersionError, ProfileInvalidError:
            it holds none; ``path`` is named in the message.
    """
    name = None if path is None else os.fspath(path)
    try:
        return _decode(data, name)
    except UnicodeDecodeError as e:  # msgspec looks at text only where it makes a value of it
        raise ProfileInvalidError(
            name, f"damaged: {e}; copy it again or take the profile again"
        ) from e


def _decode(data: bytes, name: str | None) -> list[Profile]:
    zipped = data[:2] in (_GZIP_MAGIC, _GZIP_MAGIC[:1])
    if zipped and _head(data, len(STREAM_HEAD)) == STREAM_HEAD:
        return [_from_document(document, name) for document in documents(data, name)]
    if zipped:
        data = _gunzip(data, name)
    if is_document(data):
        profile = decode_document(data, name)
    elif is_journal(data):
        profile = decode_journal(data, name)
    else:
        _check_header(data, name)
        try:
            profile = msgspec.json.decode(data, type=Profile)
        except msgspec.ValidationError as e:
            raise _invalid(e, name) from e
    validate(profile, name)
    return [profile]


def _from_document(document: dict[str, Any], name: str | None) -> Profile:
    _check_complete(document, name)
    document["format"] = FORMAT
    try:
        profile = msgspec.convert(document, Profile, str_keys=True)
    except msgspec.ValidationError as e:
        raise _invalid(e, name) from e
    validate(profile, name)
    return profile


def _invalid(e: msgspec.ValidationError, name: str | None) -> ProfileInvalidError:
    message = str(e)
    where = message.rpartition(" - at `")[2].rstrip("`") if " - at `" in message else "$"
    return ProfileInvalidError(
        name, f"not a valid profile: {message}; see docs/profile-format.md", where
    )


def _head(data: bytes, length: int) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(data[:4096], length)
    except zlib.error:
        return b""


def read_profile(path: StrPath) -> Profile:
    """Read and check a profile file.

    Raises:
        ProfileUnreadableError: it is missing, a folder, or may not be read.
        ProfileTruncatedError: it ends too early.
        ProfileForeignError: it is something else.
        ProfileVersionError: it has a schema version other than ours.
        ProfileInvalidError: its content contradicts the schema or itself.
        ProfileMergedError: it holds several profiles, see ``read_profiles``.
    """
    return decode_profile(_read(path), path)


def read_profiles(path: StrPath) -> list[Profile]:
    """Read and check a file of one profile or several (``memprof merge``).

    Raises:
        ProfileError: as ``read_profile``, but for ``ProfileMergedError``.
    """
    return decode_profiles(_read(path), path)


def _read(path: StrPath) -> bytes:
    try:
        try:
            return Path(path).read_bytes()
        except FileNotFoundError:
            # The tracker that will write it runs, or was killed.
            journal = Path(f"{os.fspath(path)}{JOURNAL_SUFFIX}")
            if not journal.is_file():
                raise
            return journal.read_bytes()
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileUnreadableError(path, f"cannot read it: {_reason(e)}; {_advice(e)}") from e


def write_profile(profile: Profile, path: StrPath) -> None:
    """Write a profile file, whole or not at all; see ``write_whole``.

    Args:
        profile: what to write.
        path: where to; gzip if it ends in ``.gz``, a stream if in ``.memprof``. Its folder
            must exist. A symbolic link is followed.

    Raises:
        ProfileInvalidError: ``profile`` has no JSON form.
        ProfileNotWritableError: the operating system refuses.
    """
    if streams(path):
        write_profiles([profile], path)
        return
    data = encode_profile(profile)
    if os.fspath(path).endswith(".gz"):
        data = gzip.compress(data, compresslevel=6, mtime=0)
    write_whole(path, data, "the profile")


def write_profiles(profiles: Sequence[Profile], path: StrPath) -> None:
    """Write several profiles into one stream, whole or not at all.

    Args:
        profiles: one a process.
        path: where to, whatever it ends in.

    Raises:
        ProfileInvalidError: one has no JSON form.
        ProfileNotWritableError: the operating system refuses.
    """
    try:
        data = b"".join(map(encode_stream, profiles))
    except (TypeError, ValueError, RecursionError) as e:
        raise _no_json(e) from e
    write_whole(path, data, "the profile")


def write_whole(path: StrPath, data: bytes, what: str) -> None:
    """Write a file, whole or not at all; see ``replacing``.

    Args:
        path: where to. Its folder must exist. A symbolic link is followed.
        data: the content.
        what: names the content in the error, e.g. ``the report``.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    with replacing(path, f"{what} ({len(data):,} bytes)") as fd:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]


@contextlib.contextmanager
def replacing(path: StrPath, what: str) -> Iterator[int]:
    """The descriptor of a new file that takes the path's place when the block ends well.

    It lies in the same folder, reaches the disk, and then takes the place in one step. When
    anything fails, an interrupt included, it is removed and what was at ``path`` before is as
    it was.

    Args:
        path: where to. Its folder must exist. A symbolic link is followed.
        what: names the content in the error.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    try:
        target = os.path.realpath(path)
        _check_target(target)
        temporary = _temporary(target)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        fd = os.open(temporary, flags, 0o666)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise _refused(path, what, e) from e
    try:
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, target)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(e, OSError):
            raise _refused(path, what, e) from e
        raise
    # The rename itself reaches the disk with the folder; not every system can do this.
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(target), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def check_writable(path: StrPath) -> None:
    """Find out now, without touching ``path``, whether ``write_profile`` can write there.

    Raises:
        ProfileNotWritableError: it cannot; a full disk shows only when writing.
    """
    try:
        target = os.path.realpath(path)
        _check_target(target)
        probe = _temporary(target)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        os.unlink(probe)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileNotWritableError(
            path, f"a profile cannot be written there: {_reason(e)}; {_advice(e)}"
        ) from e


def create_for_streaming(path: StrPath) -> int:
    """An open file descriptor of a new, empty file, in the place of what was at ``path``.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    try:
        _check_target(os.path.realpath(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o666)
    except (OSError, ValueError) as e:
        raise ProfileNotWritableError(
            path, f"a profile cannot be written there: {_reason(e)}; {_advice(e)}"
        ) from e


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


def _check_header(data: bytes, path: str | None) -> None:
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
    return None if raw is None else msgspec.json.decode(raw)


_WHAT = f": a profile is a JSON object that begins with {_HEAD.decode()}"


def _gunzip(data: bytes, path: str | None) -> bytes:
    try:
        if len(data) < len(_GZIP_MAGIC):
            raise EOFError
        return gzip.decompress(data)
    except EOFError as e:
        raise ProfileTruncatedError(
            path,
            f"truncated: the gzip stream ends early, after {len(data):,} bytes; copy it again "
            "or take the profile again",
        ) from e
    except (OSError, zlib.error) as e:
        raise ProfileInvalidError(
            path, f"damaged gzip file: {e}; copy it again or take the profile again"
        ) from e


def _check_target(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            # As root, replacing /dev/null by a file would succeed.
            raise OSError(errno.EINVAL, "not a regular file", path)


def _temporary(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}.tmp")


def _refused(path: StrPath, what: str, e: Exception) -> ProfileNotWritableError:
    return ProfileNotWritableError(
        path, f"cannot write {what}: {_reason(e)}; {_advice(e)}. Nothing was changed there"
    )


def _reason(e: Exception) -> str:
    return e.strerror or str(e) if isinstance(e, OSError) else str(e)


_ADVICE = {
    errno.ENOENT: "check the path; the folder must exist",
    errno.ENOTDIR: "check the path: a part of it is a file, not a folder",
    errno.EISDIR: "give a file, not a folder",
    errno.EACCES: "check the permissions or give another path",
    errno.EPERM: "check the permissions or give another path",
    errno.EROFS: "give a path on a file system that is not read-only",
    errno.ENOSPC: "make room or give a path on another disk",
    errno.EDQUOT: "make room in your quota or give a path on another disk",
    errno.ENAMETOOLONG: "give a shorter name",
}


def _advice(e: Exception) -> str:
    code = e.errno if isinstance(e, OSError) else None
    return _ADVICE.get(code or 0, "give the path of a regular file")

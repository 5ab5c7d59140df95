"""Bytes of a file, and what compressed bytes unpack to, both bounded.

Note [How much is read]
~~~~~~~~~~~~~~~~~~~~~~~
A profile may come from anybody, and a few kilobytes of gzip can unpack to gigabytes. So:

* only regular files are read: a pipe can make us wait for ever, a device never ends;
* a file, and what it unpacks to, has at most ``LIMIT`` bytes (1 GiB: some 30 million calls), or as
  many as the environment variable ``MEMPROF_MAX_READ`` says: ``8GiB``, or ``none``;
* what unpacks to more than ``FREE`` bytes may not be ``RATIO`` times as large as it came, unless
  that variable is set: profiles shrink to a tenth or a twentieth, those of a thousand layers
  that are all alike to a hundredth, a bomb to a thousandth.

Both are found out while unpacking. A profile of so many bytes of JSON takes up to some 25 times as
many in memory: the smallest values (``{}``) of JSON are the largest in Python by comparison.

Note [Damaged members]
~~~~~~~~~~~~~~~~~~~~~~
A stream is a row of gzip members, each complete in itself and with a checksum. Where one cannot be
unpacked, the next one is looked for by the bytes that begin a member, from right behind the
beginning of the damaged one: a broken member may unpack for a long way into those after it. What is
unpacked in vain counts, so that a file of nothing but beginnings is refused like a bomb.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .errors import (
    ProfileInvalidError,
    ProfileTooLargeError,
    ProfileTruncatedError,
    ProfileUnreadableError,
)
from .writing import why

__all__ = [
    "FREE",
    "LIMIT",
    "LIMIT_VARIABLE",
    "RATIO",
    "TRUNCATED",
    "Budget",
    "Member",
    "members",
    "read_file",
    "unpack",
]

StrPath = str | os.PathLike[str]

LIMIT = 1 << 30
FREE = 64 << 20
RATIO = 400
LIMIT_VARIABLE = "MEMPROF_MAX_READ"

_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_BLOCKS = (1 << 12, 1 << 16)
"""Bytes that are unpacked at a time, the first of a member and all others: what is left over of a
block is copied, and a file can have a million members."""
_PIECE = 1 << 20
_MOST_DAMAGED = 1_000
"""Members that cannot be unpacked; behind these nobody looks for whole ones."""
_MEMBER = b"\x1f\x8b\x08"
_BEGIN = 4_096
TRUNCATED = "truncated"


def read_file(path: StrPath, or_else: StrPath | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        or_else: what to read if it is missing.

    Raises:
        ProfileUnreadableError: it is missing, no regular file, or may not be read.
        ProfileTooLargeError: it is larger than Note [How much is read] allows.
    """
    limit = _limit(path)
    try:
        try:
            return _read(Path(path), limit)
        except FileNotFoundError:
            if or_else is None or not Path(or_else).is_file():
                raise
            return _read(Path(or_else), limit)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileUnreadableError(path, f"cannot read it: {why(e)}") from e


def _read(path: Path, limit: float) -> bytes:
    _check_regular(os.stat(path), path)  # Opening some devices does something.
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(fd, "rb") as file:
        found = os.fstat(fd)  # Another file may have come meanwhile.
        _check_regular(found, path)
        if found.st_size > limit:
            raise _too_large(path, f"it has {found.st_size:,} bytes", limit)
        data = file.read(-1 if limit == float("inf") else int(limit) + 1)
    if len(data) > limit:
        raise _too_large(path, f"it has more than {int(limit):,} bytes", limit)
    return data


def _check_regular(found: os.stat_result, path: Path) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", str(path))
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
    raise ValueError(f"it is {kind}, which may never end: write it to a file first")


def _limit(path: StrPath | None) -> float:
    """Bytes that may be read; infinite for ``none``."""
    text = _given()
    if text == "none":
        return float("inf")
    if not text:
        return LIMIT
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]i)?b?", text)
    if found is None or not int(found[1]):
        raise ProfileUnreadableError(
            path,
            f"not read, since {LIMIT_VARIABLE} is {text[:40]!r}: give it bytes such as 8GiB, or "
            "none",
        )
    return int(found[1]) * _UNITS[f"{found[2]}b" if found[2] else ""]


def _given() -> str:
    return os.environ.get(LIMIT_VARIABLE, "").strip().lower()


def _too_large(path: StrPath | None, what: str, limit: float) -> ProfileTooLargeError:
    return ProfileTooLargeError(
        path,
        f"{what}, and memprof reads at most {int(limit):,}; if you trust it, set "
        f"{LIMIT_VARIABLE}, e.g. to {max(int(limit) * 8 >> 30, 1)}GiB or none",
    )


class Budget:
    """What unpacking one file may still make.

    Args:
        packed: bytes of the file.
        path: to name in errors.
    """

    def __init__(self, packed: int, path: StrPath | None) -> None:
        self._path = path
        self._limit = _limit(path)
        self._most = self._limit
        if not _given():
            self._most = min(self._limit, max(FREE, RATIO * packed))
        self._packed = packed
        self._spent = 0

    def spend(self, nbytes: int) -> None:
        """Count bytes that were unpacked.

        Raises:
            ProfileTooLargeError: it has come to too many.
        """
        self._spent += nbytes
        if self._spent > self._most:
            raise _too_large(
                self._path,
                f"its {self._packed:,} bytes unpack to more than {int(self._most):,}",
                self._limit,
            )


@dataclass(frozen=True, slots=True)
class Member:
    """A gzip member.

    Attributes:
        start: its first byte in the file.
        data: what it unpacks to; None if it is damaged.
        problem: in what way, "" if it is not; ``TRUNCATED`` if the file ends in it.
        begin: of a damaged one the first bytes of what it unpacked to, not checked.
    """

    start: int
    data: bytes | None
    problem: str = ""
    begin: bytes = b""


def members(data: bytes, budget: Budget) -> Iterator[Member]:
    """The members of a row of gzip members; see Note [Damaged members]. Zeros at the end, which a
    file system can leave where the last write did not arrive, are none.

    Raises:
        ProfileTooLargeError: they unpack to too much.
    """
    view = memoryview(data)
    at = damaged = 0
    while at < len(data):
        found, end = _member(view, at, budget)
        if found.data is not None:
            yield found
            at = end
            continue
        end = data.find(_MEMBER, at + 1)
        end = len(data) if end < 0 else end
        if data[at:end].strip(b"\0"):
            yield found
            damaged += 1
            if damaged == _MOST_DAMAGED:
                return
        at = end


def unpack(data: bytes, path: StrPath | None) -> bytes:
    """What a gzip file unpacks to.

    Raises:
        ProfileTruncatedError: it ends early.
        ProfileInvalidError: it is damaged.
        ProfileTooLargeError: it unpacks to too much.
    """
    pieces = []
    for member in members(data, Budget(len(data), path)):
        if member.problem == TRUNCATED:
            raise ProfileTruncatedError(
                path,
                f"truncated: the gzip stream ends early, after {len(data):,} bytes; copy it again "
                "or take the profile again",
            )
        if member.data is None:
            raise ProfileInvalidError(
                path,
                f"damaged gzip file: {member.problem}; copy it again or take the profile again",
            )
        pieces.append(member.data)
    return b"".join(pieces)


def _member(view: memoryview, start: int, budget: Budget) -> tuple[Member, int]:
    """The member at ``start``, and where it ends."""
    unpacker = zlib.decompressobj(wbits=31)
    pieces: list[bytes] = []
    at = start
    try:
        while not unpacker.eof and at < len(view):
            block = view[at : at + _BLOCKS[at > start]]
            at += len(block)
            packed: bytes | memoryview = block
            while True:
                piece = unpacker.decompress(packed, _PIECE)
                budget.spend(len(piece))
                pieces.append(piece)
                packed = unpacker.unconsumed_tail
                if not packed or unpacker.eof:  # At the end the tail is unused_data as well.
                    break
        if unpacker.eof:
            return Member(start, b"".join(pieces)), at - len(unpacker.unused_data)
    except zlib.error as e:
        return Member(start, None, str(e), _begin(view[start : start + _BEGIN])), at
    return Member(start, None, TRUNCATED, _begin(view[start : start + _BEGIN])), at


def _begin(packed: bytes | memoryview) -> bytes:
    """What the beginning of a member unpacks to, as far as that goes."""
    unpacker, out = zlib.decompressobj(wbits=31), b""
    try:
        while packed and not unpacker.eof and len(out) < _BEGIN:
            out += unpacker.decompress(packed, 64)
            packed = unpacker.unconsumed_tail
    except zlib.error:
        pass
    return out

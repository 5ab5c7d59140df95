"""The bytes of a profile file: a row of frames.

Note [What a profile file looks like]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A file is a row of *frames*, appended while the process runs or written at once: a header, which
docs/profile-format.md describes, and JSON, compressed by zlib. The number of its process tells
apart the processes of a file: files are merged by concatenating them.

A frame that does not agree with its checksum is left out, and the next one is looked for: right
behind it if one begins there, else by ``MAGIC``. Its number among those of its process tells what
is missing. A frame that ends behind the end of the file, and zeros there (which a file system can
leave where the last write did not arrive), are what a killed process leaves behind: no damage.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .reading import Budget, unpacked

MAGIC = b"\x93mpf"
_HEAD = struct.Struct("<4sB3xIIII")
_NUMBERS = struct.Struct("<BIII")
_VAIN = 4
"""Times the bytes of a file whose checksums may be taken in vain."""
_MOST_DAMAGED = 1_000
"""Damaged places in a file; behind these nobody looks for whole frames."""


class Kind(enum.IntEnum):
    """What a frame holds; those that are not known are passed over."""

    HEADER = 0
    FIELDS = 1
    GRAPH = 2
    LEDGER = 3
    CALLS = 4
    END = 5
    TRACKER = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame, from byte ``start`` to ``end`` of its file, of a ``Kind`` or a number that
    this memprof does not know; the payload is JSON."""

    start: int
    end: int
    kind: int
    process: int
    number: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where no whole frame is, from ``start`` to where what is there says that it ends."""

    start: int
    end: int
    problem: str


def pack(kind: Kind, process: int, number: int, payload: bytes) -> bytes:
    """A frame; ``payload`` is JSON, not compressed, and the numbers are below 2³²."""
    packed = zlib.compress(payload, 6)
    check = _check(kind, process, number, packed)
    return _HEAD.pack(MAGIC, kind, process, number, len(packed), check) + packed


def _check(kind: int, process: int, number: int, packed: bytes | memoryview) -> int:
    return zlib.crc32(packed, zlib.crc32(_NUMBERS.pack(kind, process, number, len(packed))))


def may_begin(data: bytes, at: int = 0) -> bool:
    """Whether a frame begins here, as far as ``data`` goes: all of it may be still to come."""
    return MAGIC.startswith(data[at : at + len(MAGIC)])


def frames(data: bytes, budget: Budget) -> Iterator[Frame | Damage]:
    """The frames of a file, in order, and what is between them.

    Raises:
        ProfileTooLargeError: they unpack to too much.
    """
    view = memoryview(data)
    at, vain, damaged = 0, 0, 0
    while at < len(data):
        found = _frame(view, at, budget)
        if isinstance(found, Frame):
            yield found
            at = found.end
            continue
        following = data.find(MAGIC, at + 1)
        end = found.end
        if following < 0 and (end > len(data) or not data[at:].strip(b"\0")):
            return  # a killed process's last frame
        yield found
        damaged += 1
        vain += min(end, len(data)) - at
        if damaged == _MOST_DAMAGED or vain > _VAIN * len(data):
            return
        if data[end : end + len(MAGIC)] == MAGIC:
            at = end
        else:
            at = following if following >= 0 else len(data)


def _frame(view: memoryview, at: int, budget: Budget) -> Frame | Damage:
    begin = at + _HEAD.size
    if begin > len(view):
        return Damage(at, begin, "cut off")
    magic, kind, process, number, length, check = _HEAD.unpack_from(view, at)
    if magic != MAGIC:
        return Damage(at, at + 1, "no frame begins here")
    end = begin + length
    packed = view[begin:end]
    if end > len(view):
        return Damage(at, end, "cut off")
    if _check(kind, process, number, packed) != check:
        return Damage(at, end, "its checksum is another")
    try:
        payload, _ = unpacked(packed, budget)
    except (zlib.error, EOFError) as e:
        return Damage(at, end, str(e))
    return Frame(at, end, kind, process, number, payload)

"""The bytes of a profile file: a row of frames.

Note [What a profile file looks like]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A file is a row of *frames*, appended while the process runs or written at once: a header, which
docs/profile-format.md describes, and JSON, compressed by zlib. The number of its process tells
apart the processes of a file: files are merged by concatenating them.

It is read up to the first place where no whole frame is. A frame that ends behind the end of the
file, and zeros there (which a file system can leave where the last write did not arrive), are what
a killed process leaves behind: no damage.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from . import reading

MAGIC = b"\x93mpf"
_HEAD = struct.Struct("<4sB3xIIII")
_NUMBERS = struct.Struct("<BIII")
_CUT = "cut off"


class Kind(enum.IntEnum):
    """Kind of a frame by what it holds; frames of unknown kinds are passed over."""

    HEADER = 0
    FIELDS = 1
    GRAPH = 2
    LEDGER = 3
    CALLS = 4
    END = 5


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
    """The place from which on a file is not read, and why."""

    start: int
    problem: str


def pack(kind: Kind, process: int, number: int, payload: bytes) -> bytes:
    """A frame; ``payload`` is JSON, not compressed, and the numbers are below 2³²."""
    packed = zlib.compress(payload, 6)
    check = _check(kind, process, number, packed)
    return _HEAD.pack(MAGIC, kind, process, number, len(packed), check) + packed


def _check(kind: int, process: int, number: int, packed: bytes | memoryview) -> int:
    return zlib.crc32(packed, zlib.crc32(_NUMBERS.pack(kind, process, number, len(packed))))


def may_begin(data: bytes) -> bool:
    """Whether ``data`` may begin with a frame, by as many of its first bytes as there are: with
    none, it may."""
    return MAGIC.startswith(data[: len(MAGIC)])


def frames(data: bytes, path: str | None) -> Iterator[Frame | Damage]:
    """The whole frames of a file up to the first place that is damaged, and that place.

    Raises:
        ProfileUnreadableError: they unpack to too much.
    """
    room = reading.LIMIT
    view, at = memoryview(data), 0
    while at < len(data):
        found = _frame(view, at, room)
        if isinstance(found, str):
            # Behind what a killed process leaves no other frame begins.
            followed = found != _CUT or data.find(MAGIC, at + 1) >= 0
            if followed and data[at:].strip(b"\0"):
                yield Damage(at, found)
            return
        room -= len(found.payload)
        if room < 0:
            raise reading.too_large(path, f"its {len(data):,} bytes unpack to")
        yield found
        at = found.end


def _frame(view: memoryview, at: int, room: int) -> Frame | str:
    """The frame that begins at a byte, or why there is none; ``room``: see ``unpacked``."""
    begin = at + _HEAD.size
    if begin > len(view):
        return _CUT
    magic, kind, process, number, length, check = _HEAD.unpack_from(view, at)
    if magic != MAGIC:
        return "no frame begins here"
    end = begin + length
    packed = view[begin:end]
    if end > len(view):
        return _CUT
    if _check(kind, process, number, packed) != check:
        return "its checksum is another"
    try:
        payload = reading.unpacked(packed, room)
    except zlib.error as e:
        return str(e)
    return Frame(at, end, kind, process, number, payload)

"""Files of snapshots: read by content, packed by gzip or not, and never executed.

Note [Who may load a snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pickle is a program, and a snapshot may be anybody's. A reader of all opcodes in Python takes
minutes for hundreds of MB. C's unpickler takes seconds and is not safe by itself, even where
``find_class`` refuses everything: it makes a memo as large as an index says (five bytes: 64 GiB),
a ``bytes`` as long as a length says, and hashes tuples in tuples of any depth. So ``check`` walks
over the opcodes without doing them, with their lengths looked up for all bytes at once
(``bytes.translate``; 4 s for 252 MB), and refuses every opcode that
``torch.cuda.memory._dump_snapshot`` does not write in a protocol from 2 to 5. What is left goes to
C's unpickler, whose ``find_class`` and ``persistent_load`` refuse all the same. So of every file,
damaged, invented or hostile:

* Nothing is imported, called or executed, and no class is looked up.
* Every length (of text, bytes, frames) ends within the file. Whole numbers have at most 64 bits and
  a sign.
* A memo's index is at most ``SPARE`` larger than twice the objects that were put by number: torch
  and memprof number them from 0 or 256 on.
* A dictionary or list comes on at most every ``SPARSE`` bytes (snapshots have one in 20 or more),
  beyond the first ``SPARE``: a byte that makes an empty dictionary takes 64 in memory.
  The values of a file take at most some 35 times its size; a real snapshot's took 5.
* Tuples are pairs of whole numbers of at most 32 bits (``segment_pool_id``), or empty: no hash is
  deep, and few keys collide, as text and bytes are hashed with the process's own secret.
* The file ends with its pickle. Dictionaries and lists may contain each other to any depth, or
  themselves: ``shape`` walks along fields by name alone, each object once.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib

from ..errors import SnapshotRefusedError
from ..process_hooks import collector_paused
from ..reading import Budget, StrPath, read_file, unpacked
from .shape import Snapshot

_FIXED = {
    b"}": 0, b"]": 0, b")": 0, b"(": 0, b"N": 0, b"\x88": 0, b"\x89": 0,  # new values
    b"K": 1, b"M": 2, b"J": 4, b"G": 8,  # numbers
    b"h": 1, b"j": 4, b"\x94": 0,  # memo
    b"a": 0, b"e": 0, b"s": 0, b"u": 0, b"d": 0, b"l": 0,  # into dictionaries and lists
}  # fmt: skip
"""Opcodes that are let pass, and the bytes of their argument."""

_SMALL_INTEGERS = frozenset(b"KMJ")
_COUNTED = frozenset(b"}]dl")
"""Opcodes that make a dictionary or a list."""
_PUTS = frozenset(b"qr")
"""BINPUT and LONG_BINPUT."""

SPARE = 4096
SPARSE = 8

_NAMED = {
    **dict.fromkeys(b"c\x93i", "names a class or function"),
    **dict.fromkeys(b"Rbo\x81\x92", "makes or changes an object"),
    **dict.fromkeys(b"PQ", "asks for an object outside of the file"),
    **dict.fromkeys(b"\x82\x83\x84", "asks for an object of the extension registry"),
    **dict.fromkeys(b"\x8f\x90\x91", "makes a set"),
    **dict.fromkeys(b"\x96\x97\x98", "asks for a buffer"),
    **dict.fromkeys(b"ILFSVgp", "is of pickle's text protocol"),
    **dict.fromkeys(b"\x8b", "makes a number of more than 64 bits"),
    **dict.fromkeys(b"\x8d\x8e", "makes a text of more than 4 GiB"),
    **dict.fromkeys(b"\x85\x87t", "makes a tuple other than a pair of small numbers"),
    **dict.fromkeys(b"TU", "makes a text of Python 2"),
}

_LENGTHS = bytes(0 if op in _COUNTED else 1 + _FIXED.get(bytes([op]), -1) for op in range(256))
"""By opcode: its bytes with its argument; 0 where it has to be looked at."""


class Refused(ValueError):
    """Why a pickle is not loaded, in words that follow the name of a file."""


class Truncated(Refused):
    """The pickle ends too early."""


def check(data: bytes) -> None:
    """Refuse a pickle that is more than data; Note [Who may load a snapshot].

    Args:
        data: the whole content of a file.

    Raises:
        Refused: it holds an opcode or a size that no snapshot has.
    """
    end = len(data)
    lengths = data.translate(_LENGTHS)
    at = containers = put = 0
    before = last = -1  # The two opcodes before this one.
    try:
        while True:
            length = lengths[at]
            if not length:
                op = data[at]
                if op == 0x2E:  # STOP
                    break
                if op in _COUNTED:
                    containers += 1
                    if containers > SPARE + end // SPARSE:
                        raise Refused(
                            f"it makes {containers:,} dictionaries and lists in {at:,} bytes, "
                            "more than a snapshot does"
                        )
                    length = 1
                else:
                    put += op in _PUTS
                    length = _length(data, at, last, before, put)
                    if at + length > end:
                        raise Truncated(
                            f"at byte {at:,} something has {length:,} bytes, and {end - at:,} are "
                            "left of the file"
                        )
            before, last = last, at
            at += length
    except (IndexError, struct.error) as e:
        raise Truncated(f"it ends in the middle of its data, after {end:,} bytes") from e
    if at + 1 != end:
        raise Refused(f"{end - at - 1:,} bytes follow the end of its data")


def _length(data: bytes, at: int, last: int, before: int, put: int) -> int:
    """How long an opcode is that is not let pass by itself.

    Args:
        data: the pickle.
        at: where the opcode is.
        last, before: where the one before it is, and the one before that; -1 for none.
        put: objects that were put into the memo by number so far.
    """
    op = data[at]
    if op in b"\x8cC":  # SHORT_BINUNICODE, SHORT_BINBYTES
        return 2 + data[at + 1]
    if op in _COUNTED:
        return 1
    if op == 0x8A:  # LONG1
        if data[at + 1] > 9:
            raise Refused(f"at byte {at:,} it has a number of {data[at + 1]} bytes")
        return 2 + data[at + 1]
    if op == 0x86:  # TUPLE2
        if min(last, before) < 0 or not {data[last], data[before]} <= _SMALL_INTEGERS:
            raise Refused(f"at byte {at:,} it has a pair of something else than small numbers")
        return 1
    if op in b"XB":  # BINUNICODE, BINBYTES
        return 5 + int(struct.unpack_from("<I", data, at + 1)[0])
    if op == 0x95:  # FRAME
        (length,) = struct.unpack_from("<Q", data, at + 1)
        if at + 9 + length > len(data):
            raise Truncated(
                f"at byte {at:,} a frame of {length:,} bytes begins, and "
                f"{len(data) - at - 9:,} are left of the file"
            )
        return 9
    if op == 0x80:  # PROTO
        if not 2 <= data[at + 1] <= 5:
            raise Refused(f"it is a pickle of protocol {data[at + 1]}: 2 to 5 are read")
        return 2
    if op in _PUTS:
        length, form = (2, "<B") if op == 0x71 else (5, "<I")
        (index,) = struct.unpack_from(form, data, at + 1)
        if index > SPARE + 2 * put:
            raise Refused(f"at byte {at:,} it remembers object {put:,} as number {index:,}")
        return length
    raise Refused(f"at byte {at:,} opcode 0x{op:02x} {_NAMED.get(op, 'is none of pickle')}")


class Unpickler(pickle.Unpickler):
    """C's unpickler, for what ``check`` has let pass: it looks nothing up."""

    def find_class(self, module: str, name: str) -> object:
        raise Refused(f"it names {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        raise Refused("it asks for an object outside of the file")


_PROTO = b"\x80"
_GZIP = b"\x1f\x8b"


def is_pickle(data: bytes) -> bool:
    """Whether the content of a file begins like a pickle of protocol 2 or later, packed or not."""
    if data.startswith(_GZIP):
        try:
            return zlib.decompressobj(wbits=31).decompress(data[:4096], 1) == _PROTO
        except zlib.error:
            return False
    return data.startswith(_PROTO)


def read_snapshot(path: StrPath) -> Snapshot:
    """Read and check a snapshot that ``torch.cuda.memory._dump_snapshot`` wrote, or anybody.

    Nothing of it is executed: Note [Who may load a snapshot]. It takes at most some 35 times the
    file's size in memory, and time in proportion: a snapshot of 252 MB took 10 s and 4.6 times
    its size.

    Raises:
        ProfileUnreadableError: it is missing, no regular file, or may not be read.
        ProfileTooLargeError: it is, or unpacks to, more than Note [How much is read] allows.
        SnapshotRefusedError: it is no pickle, a damaged one, or one of more than data.
        SnapshotInvalidError: it is data, and no snapshot.
    """
    return decode_snapshot(read_file(path), path)


_OF_DAMAGE = (
    pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, LookupError,
    OverflowError,
)  # fmt: skip


def decode_snapshot(data: bytes, path: StrPath | None = None) -> Snapshot:
    """The snapshot that the content of a file holds; see ``read_snapshot``."""
    name = None if path is None else os.fspath(path)
    if not is_pickle(data):
        raise SnapshotRefusedError(
            name,
            "no snapshot of torch's allocator, which is a pickle of protocol 2 or later: give what "
            "torch.cuda.memory._dump_snapshot wrote",
        )
    if data.startswith(_GZIP):
        data = _unpacked(data, name)
    try:
        with collector_paused():  # Millions of objects are made, none of which can go.
            check(data)
            value = Unpickler(io.BytesIO(data)).load()
    except Refused as e:
        said = f"not loaded, as it is no plain snapshot: {e}. Nothing of it was executed"
        if isinstance(e, Truncated):
            said = f"a truncated snapshot: {e}; copy it again or take it again"
        raise SnapshotRefusedError(name, said) from e
    except _OF_DAMAGE as e:
        said = f"{type(e).__name__}: {e}"[:200]
        raise SnapshotRefusedError(name, f"a damaged pickle: {said}") from e
    return Snapshot(value, name)


def _unpacked(data: bytes, name: str | None) -> bytes:
    try:
        found, more = unpacked(data, Budget(len(data), name), 31)
    except EOFError as e:
        raise SnapshotRefusedError(name, "a truncated gzip file: copy it again") from e
    except zlib.error as e:
        raise SnapshotRefusedError(name, f"a damaged gzip file: {e}") from e
    if more:
        raise SnapshotRefusedError(name, f"{more:,} bytes follow the end of its gzip data")
    return found

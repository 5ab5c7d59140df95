"""Files of snapshots: read by content, packed by gzip or not, and never executed.

Note [Who may load a snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A pickle is a program, and a snapshot may be anybody's. ``torch.cuda.memory._dump_snapshot`` writes
dictionaries, lists, pairs, text and numbers, so the unpickler refuses every name: nothing is
imported, called or executed. But C's unpickler takes what memory a file asks for (five bytes of a
memo's index: 64 GiB), and hashes tuples in tuples of any depth for ever. So a process with limits
of memory and CPU time tries first (``trial.py``), which takes a third of the time of reading, and
a file that does not come to an end there is not loaded.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib

from memprof.profiler.file.reading import StrPath, most_unpacked, read_file, too_large, unpacked
from memprof.profiler.support.errors import ProfileUnreadableError, SnapshotRefusedError
from memprof.profiler.support.process_hooks import collector_paused

from .shape import Snapshot
from .trial import PlainUnpickler, loads_within_limits

_PROTO = b"\x80"
_GZIP = b"\x1f\x8b"


def is_pickle(data: bytes) -> bool:
    """Tells whether the content of a file begins like a pickle of protocol 2 or later, packed or
    not."""
    if data.startswith(_GZIP):
        try:
            return zlib.decompressobj(wbits=31).decompress(data[:4096], 1) == _PROTO
        except zlib.error:
            return False
    return data.startswith(_PROTO)


def read_snapshot(path: StrPath) -> Snapshot:
    """Read and check a snapshot that ``torch.cuda.memory._dump_snapshot`` wrote, or anybody.

    Nothing of it is executed: Note [Who may load a snapshot]. It takes some five times the file's
    size in memory.

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
        loads = loads_within_limits(data)
    except OSError as e:
        raise ProfileUnreadableError(name, f"no process can be started to try it: {e}") from e
    if not loads:
        raise SnapshotRefusedError(
            name,
            "not loaded: it takes more memory or time than a snapshot of its size. Nothing of it "
            "was executed",
        )
    try:
        with collector_paused():  # Millions of objects are made, none of which can go.
            value = PlainUnpickler(io.BytesIO(data)).load()
    except _OF_DAMAGE as e:
        reason = f"{type(e).__name__}: {e}"[:200]
        raise SnapshotRefusedError(
            name,
            f"not loaded, as it is damaged or no plain snapshot: {reason}. Nothing of it was "
            "executed; copy it again or take it again",
        ) from e
    return Snapshot(value, name)


def _unpacked(data: bytes, name: str | None) -> bytes:
    most = most_unpacked(len(data), name)
    try:
        found = unpacked(data, most, 31)
    except zlib.error as e:
        raise SnapshotRefusedError(name, f"a truncated or damaged gzip file: {e}") from e
    if len(found) > most:
        raise too_large(name, f"its {len(data):,} bytes unpack to", most)
    return found

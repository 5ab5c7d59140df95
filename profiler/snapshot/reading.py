"""Files of snapshots: read by content, packed by gzip or not, and never executed."""

from __future__ import annotations

import io
import os
import pickle
import zlib
from typing import Any

from ..errors import SnapshotRefusedError
from ..process_hooks import collector_paused
from ..reading import Budget, StrPath, read_file, unpacked
from .opcodes import Refused, Truncated, Unpickler, check
from .shape import Snapshot

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
    return Snapshot(_loaded(data, name), name)


def _loaded(data: bytes, name: str | None) -> Any:
    try:
        with collector_paused():  # Millions of objects are made, none of which can go.
            check(data)
            return Unpickler(io.BytesIO(data)).load()
    except Truncated as e:
        raise SnapshotRefusedError(
            name, f"a truncated snapshot: {e}; copy it again or take it again"
        ) from e
    except Refused as e:
        raise SnapshotRefusedError(
            name, f"not loaded, as it is no plain snapshot: {e}. Nothing of it was executed"
        ) from e
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        TypeError,
        ValueError,
        LookupError,
        OverflowError,
    ) as e:
        said = f"{type(e).__name__}: {e}"[:200]
        raise SnapshotRefusedError(name, f"a damaged pickle: {said}") from e


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

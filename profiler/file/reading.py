"""Bytes of a file, and what compressed bytes unpack to, both bounded.

Note [How much is read]
~~~~~~~~~~~~~~~~~~~~~~~
A profile may come from anybody, and a few kilobytes of zlib can unpack to gigabytes. So:

* only regular files are read: a pipe can make us wait for ever, a device never ends;
* a file, and what it unpacks to, has at most ``LIMIT`` bytes: some 30 million calls.
"""

from __future__ import annotations

import os
import stat
import zlib

from memprof.profiler.support.errors import ProfileUnreadableError
from memprof.profiler.support.writing import StrPath, why

LIMIT = 1 << 30


def read_file(path: StrPath) -> bytes:
    """The content of a regular file.

    Raises:
        ProfileUnreadableError: it is missing, no regular file, may not be read, or is larger than
            Note [How much is read] allows.
    """
    return read_from(path, 0, None)[0]


def read_from(
    path: StrPath, start: int, file: tuple[int, int] | None
) -> tuple[bytes, int, tuple[int, int]]:
    """Bytes of a regular file from ``start`` on, up to which it was read before; the offset of the
    first; and the file's device and inode. All of it is read where these are not ``file`` any more,
    or where the file is shorter.

    Raises:
        ProfileUnreadableError: as ``read_file``, of what is new.
    """
    try:
        _check_kind(os.stat(path).st_mode)
        with open(path, "rb") as opened:
            found = os.fstat(opened.fileno())
            now = (found.st_dev, found.st_ino)
            begin = opened.seek(start if now == file and found.st_size >= start else 0)
            if found.st_size - begin > LIMIT:
                raise too_large(path, f"it has {found.st_size - begin:,} bytes,")
            # What comes while it is read is not read.
            return opened.read(found.st_size - begin), begin, now
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileUnreadableError(path, f"cannot read it: {why(e, 'check the path')}") from e


def _check_kind(mode: int) -> None:
    """Refuse what must not be opened: that waits for ever for a pipe, and does something to some
    devices."""
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
        raise ValueError(f"it is a {what}, which may never end: write it to a file first")


def too_large(path: StrPath | None, what: str) -> ProfileUnreadableError:
    """Error for a file beyond the ``LIMIT``; in its message ``what`` stands before "more"."""
    return ProfileUnreadableError(path, f"{what} more than the {LIMIT:,} that memprof reads")


def unpacked(packed: bytes | memoryview, room: int) -> bytes:
    """Data that ``zlib`` has packed, unpacked; if longer than ``room`` bytes, ``room + 1`` of them.

    Raises:
        zlib.error: it is damaged, or ends early.
    """
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, room + 1)
    if not unpacker.eof and len(data) <= room:
        raise zlib.error("it ends early")
    return data

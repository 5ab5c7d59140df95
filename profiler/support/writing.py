"""Writing files whole or not at all.

Note [Who may read what was replaced]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A new path gets what the umask allows. A path that was there keeps its mode, and its owner and group
where the system lets us: somebody who had made a profile private (0600) has it private still. Where
they cannot be kept, the file is its new owner's alone. Meanwhile the new file lies in a folder that
nobody else can enter.

Note [Files that are being written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A profile grows while its process lives, and another process that is given the same path must know
whether it does. Process numbers do not tell: on another host or in another PID namespace the same
number is another process. So a writer locks its file, by ``filelock``: the kernel lets go of the
lock when the last descriptor is closed, however the process ends, and every process sees it that
sees the file.

Some network and FUSE file systems have no such locks (``try_lock`` says None), or keep them to one
host. And a child that was forked without ``exec`` has the descriptor too: the writer's fork hook
closes it there.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import IO

from .errors import ProfileNotWritableError

StrPath = str | os.PathLike[str]
Output = IO[bytes]

_O_BINARY: int = getattr(os, "O_BINARY", 0)
_PATIENCE = 10
"""Tries to claim a name that others make and remove meanwhile."""


def try_lock(fd: int) -> bool | None:
    """Lock the file of ``fd`` until it is closed, without waiting. False where someone else has it,
    None where this file system has no locks."""
    from filelock import lock_descriptor  # A tenth of the time of a command that only reads.

    try:
        return lock_descriptor(fd, blocking=False)
    except OSError:
        return None


def is_locked(path: str) -> bool | None:
    """Tells whether another descriptor, of whatever process, holds a lock on the file; None where
    there is no file, or this cannot be found out."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _O_BINARY)
    except OSError:
        return None
    try:
        got = try_lock(fd)
        return None if got is None else not got
    finally:
        os.close(fd)


def claim(path: str) -> int | None:
    """A descriptor of the file at ``path``, made empty and locked; None if someone else writes it.
    Where the file system has no locks only a file that is new or empty is given."""
    for _ in range(_PATIENCE):
        # Not O_TRUNC: what is there may be another's.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _O_BINARY, 0o666)
        keep = False
        try:
            locked = try_lock(fd)
            if locked is False or (locked is None and os.fstat(fd).st_size):
                return None
            # It may have been replaced, or removed, since it was opened.
            if keep := os.path.samestat(os.fstat(fd), os.stat(path)):
                os.ftruncate(fd, 0)
                return fd
        except FileNotFoundError:
            continue
        finally:
            if not keep:
                os.close(fd)
    return None


def create_locked(path: StrPath, mode: int = 0o666) -> int:
    """A descriptor of a new file, locked where the file system has locks.

    Raises:
        OSError: it cannot be made; a ``FileExistsError`` if it is there.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _O_BINARY, mode)
    try_lock(fd)
    return fd


def names_beside(path: str) -> Iterator[str]:
    """Other names in the folder, with the number of this process before the suffix."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    for i in range(1, 100):
        count = f"-{i}" if i > 1 else ""
        yield os.path.join(folder, f"{stem}.{os.getpid()}{count}{suffix}")


def write_whole(path: StrPath, data: bytes, what: str) -> None:
    """Write a file, whole or not at all. The arguments, and what is raised, are those of
    ``replacing``; ``what`` is e.g. ``the report``."""
    with replacing(path, f"{what} ({len(data):,} bytes)") as file:
        file.write(data)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def replacing(path: StrPath, what: str) -> Iterator[Output]:
    """A new file that takes the place of ``path`` when the block ends well.

    It lies beside it, and has reached the disk before it takes its place. When anything fails, an
    interrupt included, it is removed and what was at ``path`` before is as it was. Its mode: Note
    [Who may read what was replaced].

    Args:
        path: where to. Its folder must exist. A symbolic link is followed.
        what: names the content in the error.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    try:
        target, before = _target(path)
        folder, name = os.path.split(target)
        with tempfile.TemporaryDirectory(
            prefix=f".{name[:100]}.", suffix=".tmp", dir=folder, ignore_cleanup_errors=True
        ) as own:
            temporary = os.path.join(own, "new")
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if before is not None:
                take_over(temporary, before)
            os.replace(temporary, target)
    except OSError as e:
        raise ProfileNotWritableError(
            path, f"cannot write {what}: {why(e)}. Nothing was changed there"
        ) from e


def _target(path: StrPath) -> tuple[str, os.stat_result | None]:
    """The place that a file is to take, and what is there, None if nothing is.

    Raises:
        OSError: it is no regular file, or a live process writes it.
    """
    try:
        target = os.path.realpath(path)
        found = _check_regular(target)
    except ValueError as e:  # A path with a null byte.
        raise OSError(errno.EINVAL, str(e), os.fspath(path)) from e
    if found is not None and is_locked(target):
        raise OSError(errno.EBUSY, "a session is writing it just now", target)
    return target, found


def take_over(file: str | int, before: os.stat_result) -> None:
    """Give ``file``, a path or a descriptor, owner, group and mode of ``before``, see Note [Who may
    read what was replaced]."""
    mode, now = stat.S_IMODE(before.st_mode) & 0o777, os.stat(file)
    try:
        if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
            os.chown(file, before.st_uid, before.st_gid)
    except (OSError, AttributeError):  # Windows has no owners.
        mode &= 0o700
    os.chmod(file, mode)


@contextlib.contextmanager
def output(path: StrPath) -> Iterator[Output]:
    """A binary file that takes the path's place when the block ends well, see ``replacing``. A
    path that ends in ``.gz`` is compressed.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    with replacing(path, "the export") as file:
        if os.fspath(path).endswith(".gz"):
            # Level 4: half the time of 6, a tenth more bytes.
            zipped = gzip.GzipFile("", "wb", 4, file, mtime=0)
            with zipped, io.BufferedWriter(zipped, 1 << 20) as buffered:
                yield buffered
        else:
            yield file


def check_writable(path: StrPath, what: str = "a profile") -> None:
    """Find out now, without touching ``path``, whether ``what`` can be written there.

    Raises:
        ProfileNotWritableError: it cannot; a full disk shows only when writing.
    """
    try:
        target, _ = _target(path)
        with tempfile.TemporaryFile(dir=os.path.dirname(target)):
            pass
    except OSError as e:
        raise ProfileNotWritableError(path, f"{what} cannot be written there: {why(e)}") from e


def create_for_streaming(path: StrPath, what: str = "a profile") -> tuple[int, str]:
    """A new, empty file for ``what``, which is written while its process runs: an open descriptor,
    which holds the file's lock, and the file's path. It takes the place of what was there, unless
    another live process writes that: then it lies beside it, with this process's number in its
    name.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    try:
        _check_regular(os.path.realpath(path))
        name = os.fspath(path)
        if (fd := claim(name)) is not None:
            return fd, name
        for beside in names_beside(name):
            with contextlib.suppress(FileExistsError):
                return create_locked(beside), beside
        taken = "someone writes it, and all names beside it are taken"
        raise FileExistsError(errno.EEXIST, taken, name)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileNotWritableError(path, f"{what} cannot be written there: {why(e)}") from e


def _check_regular(path: str) -> os.stat_result | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        # As root, replacing /dev/null by a file would succeed.
        raise OSError(errno.EINVAL, "not a regular file", path)
    return found


_ADVICE = {
    errno.ENOTDIR: "check the path: a part of it is a file, not a folder",
    errno.EISDIR: "give a file, not a folder",
    errno.EACCES: "check the permissions or give another path",
    errno.EPERM: "check the permissions or give another path",
    errno.EROFS: "give a path on a file system that is not read-only",
    errno.ENOSPC: "make room or give a path on another disk",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) or give a path on another disk",
    errno.EDQUOT: "make room in your quota or give a path on another disk",
    errno.EBUSY: "give another path; for several processes one with {rank} or {pid} in it",
    errno.ENAMETOOLONG: "give a shorter name",
}


def why(e: Exception, missing: str = "check the path; the folder must exist") -> str:
    """Why a path cannot be read or written, and what to do, in words, ``missing`` where there is
    nothing."""
    if not isinstance(e, OSError):
        return f"{e}; give the path of a regular file"
    advice = {errno.ENOENT: missing, **_ADVICE}
    return f"{e.strerror or e}; {advice.get(e.errno or 0, 'give the path of a regular file')}"

"""Writing files whole or not at all.

Note [Who may read what was replaced]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A new path gets what the umask allows. A path that was there keeps its mode, and its owner and group
where the system lets us: somebody who had made a profile private (0600) has it private still. Where
the group cannot be kept, the new group gets no more than everybody else had. The temporary file of
a path that was there is its owner's alone until it has taken the place.

Note [Files that are being written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A profile grows while its process lives, and another process that is given the same path must know
whether it does. Process numbers do not tell: on another host or in another PID namespace the same
number is another process. So a writer holds ``flock`` on its file, which the kernel lets go of when
the last descriptor is closed, however the process ends, and which every process sees that sees the
file.

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
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO

from .errors import ProfileExistsError, ProfileNotWritableError

_flock: Callable[[int, int], None] | None
try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock

    _flock = flock
except ImportError:  # Windows
    _flock = None

StrPath = str | os.PathLike[str]
Output = IO[bytes]

_O_BINARY: int = getattr(os, "O_BINARY", 0)
_PATIENCE = 10
"""Tries to claim a name that others make and remove meanwhile."""


def try_lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock the file of ``fd`` until it is closed, or share its lock, without waiting. False where
    someone else has it, None where this file system has no locks."""
    if _flock is None:
        return None
    try:
        _flock(fd, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
    except OSError as e:
        return False if e.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def is_locked(path: str) -> bool | None:
    """Whether another descriptor, of whatever process, holds a lock on the file; None where there
    is no file, or this cannot be found out."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _O_BINARY)
    except OSError:
        return None
    try:
        got = try_lock(fd, shared=True)
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


def names_beside(path: str) -> Iterator[str]:
    """Other names in the folder, with the number of this process before the suffix."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    for i in range(1, 100):
        count = f"-{i}" if i > 1 else ""
        yield os.path.join(folder, f"{stem}.{os.getpid()}{count}{suffix}")


def write_whole(path: StrPath, data: bytes, what: str, *, new: bool = False) -> None:
    """Write a file, whole or not at all. The arguments, and what is raised, are those of
    ``replacing_all``; ``what`` is e.g. ``the report``."""
    with replacing_all([path], f"{what} ({len(data):,} bytes)", new=new) as (fd,):
        write_all(fd, data)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@contextlib.contextmanager
def replacing_all(
    paths: Sequence[StrPath], what: str, named: StrPath | None = None, *, new: bool = False
) -> Iterator[list[int]]:
    """Descriptors of new files that take the places of ``paths`` when the block ends well.

    They lie in the same folders, and all have reached the disk before the first takes its place.
    When anything fails, an interrupt included, they are removed and what was at ``paths`` before
    is as it was. Their modes: Note [Who may read what was replaced].

    Args:
        paths: where to. Their folders must exist. A symbolic link is followed.
        what: names the content in the error.
        named: the path to name in it; by default the first.
        new: no path may exist. Nothing is replaced and no link is followed, also if it appears
            while the block runs.

    Raises:
        ProfileExistsError: ``new``, and a path exists.
        ProfileNotWritableError: the operating system refuses.
    """
    files: list[_Replacement] = []
    name = paths[0] if named is None else named
    try:
        for path in paths:
            try:
                files.append(_Replacement(path, new))
            except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
                raise refused(path, what, e) from e
        yield [file.fd for file in files]
        for file in files:
            file.settle()
        _take_places(files)
    except BaseException as e:
        for file in files:
            file.discard()
        if isinstance(e, OSError):
            raise refused(name, what, e) from e
        raise
    # The renames themselves reach the disk with the folder; not every system can do this.
    for folder in dict.fromkeys(os.path.dirname(file.target) for file in files):
        with contextlib.suppress(OSError):
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


@contextlib.contextmanager
def output(path: StrPath) -> Iterator[Output]:
    """A binary file that takes the path's place when the block ends well, see ``replacing_all``. A
    path that ends in ``.gz`` is compressed.

    Raises:
        ProfileNotWritableError: the operating system refuses.
    """
    with replacing_all([path], "the export") as (fd,), open(fd, "wb", closefd=False) as file:
        if os.fspath(path).endswith(".gz"):
            # Level 4: half the time of 6, a tenth more bytes.
            zipped = gzip.GzipFile("", "wb", 4, file, mtime=0)
            with zipped, io.BufferedWriter(zipped, 1 << 20) as buffered:
                yield buffered
        else:
            yield file


class _Replacement:
    """A file that is to take the place ``target`` (links followed, unless nothing may be there:
    ``new``) and is at ``temporary`` meanwhile; ``fd`` is -1 once it is closed."""

    def __init__(self, path: StrPath, new: bool) -> None:
        self.target = os.path.abspath(path) if new else os.path.realpath(path)
        self.new = new
        self.fd = -1
        if new and os.path.lexists(self.target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.target)
        self._before = _check_target(self.target)
        self.temporary = _temporary(self.target)
        mode = 0o666 if self._before is None else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY
        self.fd = os.open(self.temporary, flags, mode)

    def settle(self) -> None:
        """Make it the same to others as what was there before, and have it on the disk."""
        if self._before is not None:
            _keep_mode(self.fd, self.temporary, self._before)
        os.fsync(self.fd)
        fd, self.fd = self.fd, -1
        os.close(fd)

    def take_place(self) -> None:
        """Rename it; where nothing may be there, in one step where there are hard links."""
        if not self.new:
            os.replace(self.temporary, self.target)
            return
        try:
            os.link(self.temporary, self.target, follow_symlinks=False)
        except FileExistsError:
            raise
        except (OSError, NotImplementedError):
            # No hard links here. The name is claimed first: a reader of just this instant sees an
            # empty file.
            os.close(os.open(self.target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _O_BINARY, 0o666))
            os.replace(self.temporary, self.target)
        else:
            os.unlink(self.temporary)

    def discard(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)


def _take_places(files: Sequence[_Replacement]) -> None:
    if len(files) == 1:
        files[0].take_place()
        return
    kept: list[tuple[str, str | None]] = []  # place, and where that is which was there
    try:
        for file in files:
            before = None
            if os.path.lexists(file.target):
                before = _temporary(file.target)
                try:
                    os.link(file.target, before)  # So that the place is never empty.
                except OSError:  # A file system without links.
                    os.rename(file.target, before)
            kept.append((file.target, before))
            file.take_place()
    except BaseException:
        for target, before in reversed(kept):
            with contextlib.suppress(OSError):
                os.replace(before, target) if before else os.unlink(target)
        _remove(before for _, before in kept)  # A rename onto another link of a file does nothing.
        raise
    _remove(before for _, before in kept)


def _remove(paths: Iterable[str | None]) -> None:
    for path in paths:
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _keep_mode(fd: int, path: str, before: os.stat_result) -> None:
    mode = stat.S_IMODE(before.st_mode) & 0o777
    ours = os.fstat(fd)
    if hasattr(os, "fchown") and (ours.st_uid, ours.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(fd, -1, before.st_gid)
        with contextlib.suppress(OSError):
            os.fchown(fd, before.st_uid, -1)
        if os.fstat(fd).st_gid != before.st_gid:
            mode &= ~0o070 | (mode & 0o007) << 3
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)
    else:
        os.chmod(path, mode)


def check_writable(path: StrPath, what: str = "a profile") -> None:
    """Find out now, without touching ``path``, whether ``what`` can be written there.

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
        raise ProfileNotWritableError(path, f"{what} cannot be written there: {why(e)}") from e


def create_for_streaming(path: StrPath) -> tuple[int, str]:
    """A new, empty file for a profile that is written while its process runs: an open descriptor,
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
                fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | _O_BINARY, 0o666)
                try_lock(fd)
                return fd, beside
        taken = "someone writes it, and all names beside it are taken"
        raise FileExistsError(errno.EEXIST, taken, name)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte.
        raise ProfileNotWritableError(path, f"a profile cannot be written there: {why(e)}") from e


def _check_target(path: str) -> os.stat_result | None:
    """What is there, None if nothing is.

    Raises:
        OSError: it is no regular file, or a live process writes it.
    """
    found = _check_regular(path)
    if found is not None and is_locked(path):
        raise OSError(errno.EBUSY, "a session is writing it just now", path)
    return found


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


def _temporary(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}.tmp")


def refused(path: StrPath, what: str, e: Exception) -> ProfileNotWritableError:
    """What to raise where ``what`` cannot be written to ``path``."""
    if isinstance(e, FileExistsError):
        return ProfileExistsError(
            path, f"cannot write {what}: something is there already, and stays as it is"
        )
    return ProfileNotWritableError(
        path, f"cannot write {what}: {why(e)}. Nothing was changed there"
    )


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

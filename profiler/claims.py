"""Whose a file is: locks that writers hold, names that nobody has.

Note [Files that are being written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A profile grows while its process lives. Another process that is given the same path must know
whether the writer lives. Process numbers do not tell: on another host or in another PID namespace
the same number is another process. So a writer holds ``flock`` on its file. The kernel lets go of
it when the last descriptor is closed, however the process ends; it is a property of the file, so
every process that sees the file sees the lock, whatever its namespaces.

What it does not do: some network and FUSE file systems have no such locks (``try_lock`` says
None), or keep them to one host. And a child that was forked without ``exec`` has the descriptor
too: the writer's fork hook closes it there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator

_flock: Callable[[int, int], None] | None
try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock

    _flock = flock
except ImportError:  # Windows
    _flock = None

_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_PATIENCE = 10
"""Tries to claim a name that others make and remove meanwhile."""


def try_lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock the file of ``fd`` until it is closed, or share its lock; waits for nothing. False where
    someone else has it, None where this file system has no locks."""
    if _flock is None:
        return None
    try:
        _flock(fd, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
    except OSError as e:
        return False if e.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def is_locked(path: str) -> bool | None:
    """Whether a lock on the file at ``path`` is held by another descriptor, of whatever process;
    None where there is no such file, or this cannot be found out."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _FLAGS)
    except OSError:
        return None
    try:
        got = try_lock(fd, shared=True)
        return None if got is None else not got
    finally:
        os.close(fd)


def claim(path: str) -> int | None:
    """A descriptor of the file at ``path``, made empty and locked; None if someone else writes it.

    Where the file system has no locks nobody can know that: there only a file that is new or empty
    is given.

    Raises:
        OSError: the operating system refuses.
    """
    for _ in range(_PATIENCE):
        # Not O_TRUNC: what is there may be another's.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
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


def claim_here_or_beside(path: str) -> tuple[int, str]:
    """A descriptor as ``claim`` gives it, and its path: ``path``, or if someone else writes that,
    a new file beside it.

    Raises:
        OSError: the operating system refuses.
    """
    fd = claim(path)
    if fd is not None:
        return fd, path
    for name in names_beside(path):
        with contextlib.suppress(FileExistsError):
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            try_lock(fd)
            return fd, name
    raise FileExistsError(
        errno.EEXIST, "someone writes it, and all names beside it are taken", path
    )


def names_beside(path: str) -> Iterator[str]:
    """Other names in the folder of ``path``, with the number of this process before the suffix."""
    folder, name = os.path.split(path)
    stem, suffix = os.path.splitext(name)
    if suffix == ".gz":
        stem, inner = os.path.splitext(stem)
        suffix = inner + suffix
    for i in range(1, 100):
        count = f"-{i}" if i > 1 else ""
        yield os.path.join(folder, f"{stem}.{os.getpid()}{count}{suffix}")


def put_in_place(temporary: str, target: str) -> None:
    """Rename a file unless ``target`` exists, if only as a link; in one step where there are hard
    links.

    Raises:
        FileExistsError: it exists.
        OSError: the operating system refuses.
    """
    try:
        os.link(temporary, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        # No hard links here. The name is claimed first: a reader of just this instant sees an
        # empty file.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666))
        os.replace(temporary, target)
    else:
        os.unlink(temporary)

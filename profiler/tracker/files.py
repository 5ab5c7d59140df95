"""Names of a tracker's files; no torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ProfileExistsError
from ..writing import names_beside, write_whole
from .fold import Entry
from .journal import Journal


def names(folder: Path, now: float | None = None) -> Iterator[Path]:
    """Names for a file in ``folder``, best first: ``memory_profile_YYYYMMDD_HHMMSS.memprof`` in
    local time, then with the process's number, then with a count."""
    stem = time.strftime("memory_profile_%Y%m%d_%H%M%S", time.localtime(now))
    yield folder / f"{stem}.memprof"
    yield folder / f"{stem}_{os.getpid()}.memprof"
    for i in range(2, 1000):
        yield folder / f"{stem}_{os.getpid()}_{i}.memprof"


def open_journal(folder: Path, memprof: str, everything: Callable[[], list[Entry]]) -> Journal:
    """The file of a tracker that starts, at a path that nothing has.

    Raises:
        OSError: a file cannot be made in ``folder``.
    """
    for path in names(folder):
        with contextlib.suppress(FileExistsError):
            return Journal(path, memprof, everything)
    raise FileExistsError(f"a thousand trackers started in {folder} within this second")


def write_record(path: Path, data: bytes) -> Path:
    """Write a tracker's final file at a name that nothing else has: ``path`` if it is free.

    Returns:
        The file's path.

    Raises:
        ProfileNotWritableError: it cannot be written.
    """
    for name in (str(path), *names_beside(str(path))):
        with contextlib.suppress(ProfileExistsError):
            write_whole(name, data, "the tracker's record", new=True)
            return Path(name)
    raise ProfileExistsError(path, "it and all names beside it are taken")

"""Names of a tracker's files; no torch."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..claims import names_beside
from ..errors import ProfileExistsError
from ..file import write_whole
from .journal import JOURNAL_SUFFIX, Entry, Header, Journal


def names(folder: Path, now: float | None = None) -> Iterator[Path]:
    """Names for a file in ``folder``, best first: ``memory_profile_YYYYMMDD_HHMMSS.memprof`` in
    local time, then with the process's number, then with a count."""
    stem = time.strftime("memory_profile_%Y%m%d_%H%M%S", time.localtime(now))
    yield folder / f"{stem}.memprof"
    yield folder / f"{stem}_{os.getpid()}.memprof"
    for i in range(2, 1000):
        yield folder / f"{stem}_{os.getpid()}_{i}.memprof"


def open_journal(
    folder: Path, header: Header, everything: Callable[[], list[Entry]]
) -> tuple[Path, Journal]:
    """A journal, and the path of the final file, which nothing else has or will have: making
    the journal claims the name, also against other processes.

    Raises:
        OSError: a file cannot be made in ``folder``.
    """
    for path in names(folder):
        if os.path.lexists(path):
            continue
        with contextlib.suppress(FileExistsError):
            journal = Journal(journal_of(path), header, everything)
            if not os.path.lexists(
                path
            ):  # as it would if another tracker had ended since we looked
                return path, journal
            journal.remove()
    raise FileExistsError(f"a thousand trackers started in {folder} within this second")


def journal_of(path: Path) -> Path:
    """The journal of a tracker whose final file is ``path``."""
    return path.with_name(path.name + JOURNAL_SUFFIX)


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

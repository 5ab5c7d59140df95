"""What trackers that were killed left behind becomes their final files; no torch.

Note [Recovery in a folder of anybody's]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It runs when a tracker starts, with the user's rights, in a folder that others may write. So a
journal is looked at only if it is a regular file of this user's with one name: no link, which
could stand for any file, no pipe, which could be waited for; what it says is not trusted (Note
[Journals are not trusted]). The final file is a new one, which replaces nothing and follows no
link. The journal goes when its writer is certainly gone (Note [Who has gone]) and the file has
been found readable, and whatever goes wrong with one leaves the others.

``MAX_BYTES``, ``MAX_FIGURES`` and ``MAX_JOURNALS`` bound what one start reads: memory stays below
256 MiB for the worst that so many bytes can say, and is given back. What is left over is left to
later starts, and ``memprof report`` reads any of it. Journals whose writer may live are not read
and do not count, or those of other hosts would keep the others from ever being recovered; a start
looks at ``MAX_LOOKED`` names at most, a header each.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from .._text import visible
from ..claims import try_lock
from ..file import decode_profile, encode_profile
from .files import write_record
from .journal import JOURNAL_SUFFIX, Header
from .read_journal import decode_header, read_journal
from .writer import left_behind

log = logging.getLogger("memprof")

MAX_BYTES = 32 << 20
MAX_FIGURES = 1_000_000
MAX_JOURNALS = 100
MAX_LOOKED = 1_000
_NAME = re.compile(rf"(memory_profile_[0-9_]+\.memprof){re.escape(JOURNAL_SUFFIX)}")
_UNFINISHED = re.compile(rf"\.{_NAME.pattern}\.[0-9a-f]+\.tmp")
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def recover(folder: Path) -> list[Path]:
    """Write the final files of trackers in ``folder`` whose process was killed.

    Returns:
        The files written. What cannot be read or written is left as it is, and logged. Raises
        nothing.
    """
    written: list[Path] = []
    left, passed_over = MAX_BYTES, 0
    for i, path in enumerate(itertools.islice(_found(folder), MAX_LOOKED)):
        if i - passed_over == MAX_JOURNALS:
            break
        try:
            with _opened(path) as file:
                if file is None or not _of_the_dead(file):
                    passed_over += 1
                    continue
                size = os.fstat(file).st_size
                if _UNFINISHED.fullmatch(path.name):
                    _remove(path, file)  # it was just being written anew: the journal is whole
                    continue
                if size > left:
                    raise OverflowError(
                        f"{size:,} bytes are too much to read now; `memprof report` reads it"
                    )
                left -= size
                final = _recover(path, file)
        except Exception as e:  # nothing in a folder is a reason not to train
            log.warning(
                "The journal of a tracker that was killed stays as it is: %s: %s",
                path,
                visible(str(e) if isinstance(e, OverflowError) else f"{type(e).__name__}: {e}"),
            )
            continue
        log.warning("A tracker was killed here; what it had recorded is in %s.", final)
        written.append(final)
    return written


def _found(folder: Path) -> Iterator[Path]:
    """Journals by name, in that order; their names alone have been looked at."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        wanted = (_NAME, _UNFINISHED)
        names = sorted(n for n in os.listdir(folder) if any(w.fullmatch(n) for w in wanted))
    return (folder / name for name in names)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A descriptor of a file of ours, None if it is something else or gone."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError as e:
        log.debug("%s is not recovered: %s", path, e)
        yield None
        return
    try:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if hasattr(os, "geteuid"):
            ours = ours and found.st_uid == os.geteuid()
        if not ours:
            log.debug("%s is not recovered: a link, no file, or somebody else's", path)
        yield fd if ours else None
    finally:
        os.close(fd)


def _header(fd: int) -> Header:
    with open(fd, "rb", closefd=False) as file:
        return decode_header(file.readline(1 << 16))


def _of_the_dead(fd: int) -> bool:
    if try_lock(fd) is False:
        return False  # by whoever writes it, perhaps its first line just now
    if os.fstat(fd).st_nlink != 1:
        return False  # since it was opened its writer has put another one in its place
    header = _header(fd)
    return left_behind(header.writer, header.locked, fd)


def _recover(path: Path, fd: int) -> Path:
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", closefd=False) as file:
        found = read_journal(file, most=MAX_FIGURES)
    data = encode_profile(found)
    # A file that lacks what the journal has is not worth the journal.
    if left_out := decode_profile(data).left_out[len(found.left_out) :]:
        raise ValueError(f"{len(left_out)} parts of it could not be read again: {left_out[0]}")
    match = _NAME.fullmatch(path.name)
    assert match is not None
    final = write_record(path.with_name(match[1]), data)
    _remove(path, fd)
    return final


def _remove(path: Path, fd: int) -> None:
    """Remove the name of the file that ``fd`` is of; what has taken its place stays."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(path), os.fstat(fd)):
            os.unlink(path)

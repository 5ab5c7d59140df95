"""Names of a tracker's files, and what trackers that were killed left behind; no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ProfileError
from ..file import write_whole
from .document import encode_document
from .journal import JOURNAL_SUFFIX, Entry, Header, Journal, decode_header, decode_journal, journals

log = logging.getLogger("memprof")


def names(folder: Path, now: float | None = None) -> Iterator[Path]:
    """Names for a file in ``folder``, best first: ``memory_profile_YYYYMMDD_HHMMSS.json`` in
    local time, then with the process's number, then with a count."""
    stem = time.strftime("memory_profile_%Y%m%d_%H%M%S", time.localtime(now))
    yield folder / f"{stem}.json"
    yield folder / f"{stem}_{os.getpid()}.json"
    for i in range(2, 1000):
        yield folder / f"{stem}_{os.getpid()}_{i}.json"


def open_journal(
    folder: Path, header: Header, everything: Callable[[], list[Entry]]
) -> tuple[Path, Journal]:
    """A journal, and the path of the final file, which nothing else has or will have: making
    the journal claims the name, also against other processes.

    Raises:
        OSError: a file cannot be made in ``folder``.
    """
    for path in names(folder):
        if path.exists():
            continue
        with contextlib.suppress(FileExistsError):
            journal = Journal(journal_of(path), header, everything)
            if not path.exists():  # as it would if another tracker had ended since we looked
                return path, journal
            journal.remove()
    raise FileExistsError(f"a thousand trackers started in {folder} within this second")


def journal_of(path: Path) -> Path:
    """The journal of a tracker whose final file is ``path``."""
    return path.with_name(path.name + JOURNAL_SUFFIX)


def started(pid: int) -> int:
    """When a process started, in ticks since the system's start; 0 if it is not known."""
    try:
        # The second field, the name, may hold anything, brackets and blanks included.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def left_behind(header: Header) -> bool:
    """Whether the process that wrote a journal is certainly gone."""
    if header.host != platform.node() or header.pid <= 0 or header.pid == os.getpid():
        return False
    if header.started and started(header.pid):
        return started(header.pid) != header.started
    try:
        os.kill(header.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def recover(folder: Path) -> list[Path]:
    """Write the final files of trackers in ``folder`` whose process was killed.

    Returns:
        The files written. What cannot be read or written is left as it is, and logged.
    """
    written = []
    for journal in journals(folder):
        path = journal.with_name(journal.name.removesuffix(JOURNAL_SUFFIX))
        try:
            data = journal.read_bytes()
            if not left_behind(decode_header(data, str(journal))):
                continue
            write_whole(path, encode_document(decode_journal(data, str(journal))), "the record")
            journal.unlink()
        except FileNotFoundError:
            continue  # another tracker that starts just now has done it
        except (OSError, ProfileError) as e:
            log.warning("The journal of a tracker that was killed stays as it is: %s", e)
            continue
        log.warning("A tracker was killed here; what it had recorded is in %s.", path)
        written.append(path)
    return written

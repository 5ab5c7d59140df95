"""Which process writes a journal, and whether it is certainly gone; no torch.

Note [Who has gone]
~~~~~~~~~~~~~~~~~~~
A journal is recovered, and then deleted, by another process; doing that to one whose writer lives
would lose its record. So a writer counts as gone only if that is certain:

* it ran under *this kernel since it started* (the boot identity): elsewhere, or before a
  restart, nothing here can tell;
* nobody holds the lock on the file (``claims``). One who does lives, whatever process numbers say;
* in the same PID namespace: no process has its number, or one that started at another time;
* in another namespace (a container) the number means nothing here, so the lock alone decides, and
  only if the writer had one.

What is not certain stays as it is; ``memprof report`` reads it all the same.
"""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ..claims import try_lock


@dataclass(frozen=True, slots=True)
class Writer:
    """A process, so that it is not taken for another one.

    Attributes:
        host: name of its machine.
        boot: identity of the running kernel, "" where there is none.
        namespace: of process numbers, 0 if not known.
        pid: its number there.
        started: when it started, in the system's ticks since boot; a process with this number
            that started at another time is another one. 0 if not known.
    """

    host: str = ""
    boot: str = ""
    namespace: int = 0
    pid: int = 0
    started: int = 0


def this_process() -> Writer:
    """Who would write a journal now."""
    return Writer(platform.node(), _boot(), _namespace(), os.getpid(), started(os.getpid()))


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def started(pid: int) -> int:
    """When a process started, in ticks since the system's start; 0 if it is not known."""
    try:
        # The second field, the name, may hold anything, brackets and blanks included.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def left_behind(writer: Writer, locked: bool, fd: int) -> bool:
    """Whether a journal's writer is certainly gone; see Note [Who has gone].

    Args:
        writer: as the journal says.
        locked: whether it says that it holds a lock.
        fd: of the journal. If the answer is yes, its lock is had by this descriptor, where the
            file system has locks.
    """
    here = this_process()
    same_kernel = writer.boot == here.boot and (here.boot or writer.host == here.host)
    if not same_kernel or writer.pid <= 0:
        return False
    lock = try_lock(fd)
    if lock is False:
        return False
    if writer.namespace != here.namespace:
        return locked and lock is True
    return not _lives(writer)


def _lives(writer: Writer) -> bool:
    now = started(writer.pid)
    if writer.started and now:
        return now == writer.started
    try:
        os.kill(writer.pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True

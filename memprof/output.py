"""Where a session's profile goes at its end, so that no process replaces what another one wrote.

Processes of one job can be given one path: without ``{rank}`` in it, or where no launcher says
the rank. Each writes when its session ends, and the last one would leave its own profile alone.
So a session notes what is at its path when it begins. At the end that is replaced, as the same
program run twice should do; what has come since, and was not written by this process, is
somebody else's, and the profile goes beside it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from memprof.profiler.claims import names_beside
from memprof.profiler.errors import ProfileExistsError
from memprof.profiler.file import write_profile
from memprof.profiler.model import Profile

log = logging.getLogger("memprof")

_Content = tuple[int, int, int, int] | None
_own: dict[str, _Content] = {}
"""What this process has written, by real path."""


class Output:
    """The file of a session, noted when it begins.

    Args:
        path: where the profile is to go.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._before = _content(path)

    def write(self, profile: Profile) -> str:
        """Write the profile, and log where to if that is not the path.

        Returns:
            The path of the file.

        Raises:
            ProfileError: it cannot be written.
        """
        if not self._taken():
            new = not os.path.lexists(self._path)
            try:
                # Asked again, since packing the profile takes seconds and others end meanwhile.
                write_own(profile, self._path, new=new, unless=self._taken)
                return self._path
            except ProfileExistsError:
                pass  # another process ended at the same instant
        for path in names_beside(self._path):
            try:
                write_own(profile, path, new=True)
            except ProfileExistsError:
                continue
            log.warning(
                "%s was written by another process while this one ran, and stays; this one's "
                "profile is in %s. Put {rank} or {pid} into the path.",
                self._path,
                path,
            )
            return path
        raise ProfileExistsError(self._path, "it and all names beside it are taken")

    def _taken(self) -> bool:
        """Whether what is at the path has come since, from another process."""
        now = _content(self._path)
        return now != self._before and now != _own.get(os.path.realpath(self._path))


def write_own(
    profile: Profile,
    path: str,
    *,
    new: bool = False,
    unless: Callable[[], bool] | None = None,
) -> None:
    """``write_profile``, noting that this process did it.

    Raises:
        ProfileError: as ``write_profile``.
    """
    write_profile(profile, path, new=new, unless=unless)
    _own[os.path.realpath(path)] = _content(path)


def _content(path: str) -> _Content:
    """What tells one content of a file from another; None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

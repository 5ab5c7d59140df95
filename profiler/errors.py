"""What can go wrong with a profile file. Every message says what was given, what is
allowed and what to do; ``str(error)`` is one line, fit to be printed as it is."""

from __future__ import annotations

import os

__all__ = [
    "ProfileError",
    "ProfileForeignError",
    "ProfileInvalidError",
    "ProfileMergedError",
    "ProfileNotWritableError",
    "ProfileTruncatedError",
    "ProfileUnreadableError",
    "ProfileVersionError",
]


class ProfileError(Exception):
    """Base of all errors about profile files.

    Attributes:
        path: the file, None for a profile that is not in a file.
    """

    def __init__(self, path: str | os.PathLike[str] | None, message: str) -> None:
        self.path = None if path is None else os.fspath(path)
        super().__init__(message if path is None else f"{self.path}: {message}")


class ProfileUnreadableError(ProfileError):
    """The operating system does not let us read the file (missing, a folder, no permission)."""


class ProfileTruncatedError(ProfileError):
    """The file begins like a profile and ends too early."""


class ProfileForeignError(ProfileError):
    """The file is something else than a memprof profile."""


class ProfileVersionError(ProfileError):
    """The file is a memprof profile of a schema version that this memprof cannot read."""


class ProfileInvalidError(ProfileError):
    """The file is a memprof profile whose content contradicts the schema or itself.

    Attributes:
        where: path of the offending value in the document, e.g. ``$.graphs[0].kind``.
    """

    def __init__(self, path: str | os.PathLike[str] | None, message: str, where: str = "$") -> None:
        self.where = where
        super().__init__(path, message)


class ProfileMergedError(ProfileError):
    """The file holds the profiles of several processes, and one was asked for."""


class ProfileNotWritableError(ProfileError):
    """The profile could not be written; what was at the path before is unchanged."""

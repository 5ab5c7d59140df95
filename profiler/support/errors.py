"""Errors about a profile file. Every message says what was given, what is allowed and what to do;
``str(error)`` is one line, fit to be printed as it is, whatever the path or the file holds: see
Note [What may reach a terminal]."""

from __future__ import annotations

import os

from .text import visible


class ProfileError(Exception):
    """Base of all errors about profile files.

    Attributes:
        path: the file, None for a profile that is not in a file.
    """

    def __init__(self, path: str | os.PathLike[str] | None, message: str) -> None:
        self.path = None if path is None else os.fspath(path)
        super().__init__(visible(message if path is None else f"{self.path}: {message}"))


class ProfileUnreadableError(ProfileError):
    """The file is not read: it is missing, a folder or no regular file (a pipe, a device), may not
    be read, or has, or unpacks to, more bytes than memprof reads of what may be anybody's."""


class ProfileInvalidError(ProfileError):
    """The file is no profile that this memprof reads: something else, one that ends too early, of
    another schema version, or one whose content contradicts the schema."""


class ProfileNotWritableError(ProfileError):
    """The profile could not be written; what was at the path before is unchanged."""

"""What both kinds of profile file begin with: format and schema version."""

from __future__ import annotations

from typing import Any

from .errors import ProfileInvalidError, ProfileVersionError
from .model import SCHEMA_VERSION


def check_version(version: Any, written_by: Any, path: str | None) -> None:
    """Refuse a file of a schema version that is not ours.

    Args:
        version: what the file says.
        written_by: version of memprof that wrote it, if it says so.
        path: to name in the message.

    Raises:
        ProfileInvalidError: ``version`` is no whole number.
        ProfileVersionError: it is another one.
    """
    if type(version) is not int:
        raise ProfileInvalidError(
            path,
            f"not a valid profile: `schema_version` is {version!r:.60}, it must be a whole number",
            "$.schema_version",
        )
    if version != SCHEMA_VERSION:
        do = (
            "read it with a newer memprof" if version > SCHEMA_VERSION else "take the profile again"
        )
        by = written_by[:60] if isinstance(written_by, str) and written_by else "?"
        raise ProfileVersionError(
            path,
            f"schema version {version!r:.60}, written by memprof {by}; this memprof reads version "
            f"{SCHEMA_VERSION}: {do}",
        )

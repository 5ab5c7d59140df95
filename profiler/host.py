"""What can be asked without torch of the machine and the installation that a process has."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Of memprof; ``unknown`` where a folder was imported that is not installed."""
    try:
        return version("memprof")
    except PackageNotFoundError:
        return "unknown"


def physical_memory() -> int | None:
    """Bytes, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None

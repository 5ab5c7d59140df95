"""Facts about the machine and the installation of a process, found without torch."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "torch-memprof"
"""Name that pip installs: PyPI's ``memprof`` is another program."""


UNKNOWN_VERSION = "unknown"
"""Version of a memprof that was imported from a folder and is not installed."""


def installed_version() -> str:
    """Version of memprof, or ``UNKNOWN_VERSION``."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN_VERSION


def resident_bytes() -> int | None:
    """Physical memory of this process, in bytes; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError, IndexError):
        return None


def physical_memory() -> int | None:
    """Physical memory of the machine, in bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None

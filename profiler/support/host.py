"""Facts about the machine and the installation of a process, found without torch."""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Where a container sees the limits of its memory, by version 2 of control groups."""


def available_memory() -> int | None:
    """Physical memory that can be had without swapping, in bytes, of the machine or, if that is
    less, of the container; None where the system does not say."""
    try:
        known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    with contextlib.suppress(OSError, ValueError):  # It is no container, or has no limit.
        limit = int((CONTROL_GROUP / "memory.max").read_text())
        used = int((CONTROL_GROUP / "memory.current").read_text())
        rows = (CONTROL_GROUP / "memory.stat").read_text().splitlines()
        # What is kept of files goes when memory is wanted.
        files = int(dict(row.split() for row in rows)["inactive_file"])
        available = min(available, limit - used + files)
    return available

"""Numbers, paths and times in words."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def format_bytes(n: int, exact: bool = False) -> str:
    """``n`` bytes with three significant digits, e.g. ``98.3 MiB``; all digits if ``exact``."""
    if exact or abs(n) < 1024:
        return f"{n:,} B"
    value = float(n)
    for unit in _UNITS:
        value /= 1024
        if abs(value) < 999.5 or unit == _UNITS[-1]:
            break
    return f"{value:,.{_digits(abs(value))}f} {unit}"


def format_both(n: int, show: Callable[[int], str] = format_bytes) -> str:
    """``n`` bytes as they are shown and exactly, ``88.1 MiB (92,431,364 B)``; once if it is one."""
    shown, exact = show(n), format_bytes(n, exact=True)
    return shown if shown == exact else f"{shown} ({exact})"


def format_share(part: int, whole: int) -> str:
    """``part`` of ``whole`` in percent; what is not nothing does not show as 0.0 %."""
    if not whole:
        return "-"
    percent = 100 * part / whole
    if part and percent < 0.05:
        return "<0.1 %"
    if part != whole and percent > 99.95:
        return ">99.9 %"
    return f"{percent:.1f} %"


def format_ns(ns: float) -> str:
    """A duration, e.g. ``12.3 ms``."""
    if ns < 999.5:  # else it would be rounded to 1000
        return f"{ns:.0f} ns"
    for size, unit in ((1e3, "us"), (1e6, "ms"), (1e9, "s")):
        if ns < 999.5 * size or unit == "s":
            break
    return f"{ns / size:.{_digits(ns / size)}f} {unit}"


def _digits(value: float) -> int:
    return 2 if value < 9.995 else 1 if value < 99.95 else 0


def shorten_path(path: str) -> str:
    """``path`` relative to the working folder, to site-packages or to the standard library,
    whichever contains it; else as it is."""
    if "site-packages/" in path:
        # Also of another environment, where the profile was taken.
        return path.rpartition("site-packages/")[2]
    for root in (os.getcwd(), sysconfig.get_paths()["stdlib"]):
        prefix = root.rstrip(os.sep) + os.sep
        if len(prefix) > 1 and path.startswith(prefix):
            return path[len(prefix) :]
    return path


def fit_path(path: str, width: int) -> str:
    """``path`` in at most ``width`` characters, its end kept: the file name says most."""
    return path if len(path) <= width else "..." + path[len(path) - max(width - 3, 0) :]

"""Describes what computed nothing, and what went wrong, in values mode."""

from __future__ import annotations

import sys

__all__ = ["errors", "missing", "say_missing"]

missing: list[str] = []
"""Kernels and operators that computed nothing."""
errors: list[Exception] = []
"""Exceptions of operators as graphs were launched."""


def say_missing(what: str) -> None:
    """Say once on stderr, and remember, that something computed nothing."""
    if what not in missing:
        missing.append(what)
        print("[simgpu] no values for", what, file=sys.stderr)

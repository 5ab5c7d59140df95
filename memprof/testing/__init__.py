"""Stable texts of graphs and allocation programs, and inline snapshots of them.

``graph_text`` and ``program_text`` print what a test wants to hold fixed and leave out what
differs between torch versions, devices and machines. ``TestCase`` compares such texts with
snapshots inside the test's source, which ``EXPECTTEST_ACCEPT=1`` rewrites; it needs
expecttest (``pip install 'memprof[testing]'``), the texts do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .graphs import graph_text
from .programs import program_text

if TYPE_CHECKING:
    from .case import TestCase

__all__ = ["TestCase", "graph_text", "program_text"]


def __getattr__(name: str) -> Any:
    # Late, so that the texts are there without expecttest.
    if name == "TestCase":
        from .case import TestCase

        return TestCase
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Stable texts of graphs and allocation programs, and inline snapshots of them.

``graph_text`` and ``program_text`` print what a test wants to hold fixed and leave out what
differs between torch versions, devices and machines. ``TestCase`` compares such texts with
snapshots inside the test's source, which ``EXPECTTEST_ACCEPT=1`` rewrites.
"""

from .case import TestCase
from .graphs import graph_text
from .programs import program_text

__all__ = ["TestCase", "graph_text", "program_text"]

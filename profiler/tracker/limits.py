"""How many different things a record can name; no torch."""

from __future__ import annotations

MAX_LANES = 256
"""Threads, and likewise tasks at a time, with a lane of their own."""
MAX_NAMES = 2_000
"""Distinct places in the tree of operations; operations at further ones are counted together."""

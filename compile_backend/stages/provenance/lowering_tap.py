"""Tap of Inductor's lowering: the ``GraphLowering`` objects that a compilation schedules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ... import _torch_compat as compat


class LoweringTap(compat.SchedulerPass):  # type: ignore[misc]
    """A scheduler pass that changes nothing and notes which ``GraphLowering`` is scheduled.

    It takes part in Inductor's cache key, so every entry that memprof hits was made by memprof, at
    this version of the tap, and has its provenance beside it.
    """

    def __init__(self, version: str, chained: Any = None) -> None:
        self.version = version
        self.chained = chained

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if self.chained is not None:
            nodes = self.chained(nodes)
        seen = getattr(_TAPPED, "graphs", None)
        graph = compat.graph_being_lowered()
        if seen is not None and not any(graph is g for g in seen):
            seen.append(graph)
        return nodes

    def uuid(self) -> Any:
        chained = self.chained.uuid() if hasattr(self.chained, "uuid") else None
        if self.chained is not None and chained is None:
            return None
        return ("memprof", self.version, chained)

    def __reduce__(self) -> Any:  # 2.11 pickles the pass itself into the cache key
        return (LoweringTap, (self.version, self.chained))


_TAPPED = threading.local()
"""``graphs``: what this thread collects; not set outside of ``tap_lowering``."""


@contextlib.contextmanager
def tap_lowering(version: str) -> Iterator[list[Any]]:
    """Collects every ``GraphLowering`` scheduled inside: the graph's, and those of its subgraphs
    (branches of ``cond``, partitions)."""
    outer = getattr(_TAPPED, "graphs", None)
    found: list[Any] = []
    _TAPPED.graphs = found
    tap = LoweringTap(version, compat.inductor_config._post_fusion_custom_pass)
    try:
        with compat.inductor_config.patch(_post_fusion_custom_pass=tap):
            yield found
    finally:
        _TAPPED.graphs = outer

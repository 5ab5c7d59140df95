"""CUDA graphs of a serving engine by the size that they are captured for."""

from __future__ import annotations

import functools
from typing import Any

import msgspec


class GraphSize(msgspec.Struct, kw_only=True):
    """Graphs for batches of one size: how many, and bytes by which the allocator's memory grew as
    they were captured. Graphs share a pool, so that the largest, which come first, add most."""

    size: int
    graphs: int = 0
    grew: int = 0


class GraphSizes:
    """Counts what this process captures, from ``install`` on; ``size`` is set by whoever knows for
    which batches is captured next."""

    def __init__(self) -> None:
        self.size = 0
        self._found: dict[int, GraphSize] = {}

    def install(self) -> None:
        """Follow captures; imports torch."""
        import torch

        graph: Any = torch.cuda.CUDAGraph
        begin, end, reserved = graph.capture_begin, graph.capture_end, torch.cuda.memory_reserved
        before = 0

        @functools.wraps(begin)
        def capture_begin(*args: Any, **kwargs: Any) -> None:
            nonlocal before
            before = reserved()
            begin(*args, **kwargs)

        @functools.wraps(end)
        def capture_end(*args: Any, **kwargs: Any) -> None:
            end(*args, **kwargs)
            found = self._found.setdefault(self.size, GraphSize(size=self.size))
            found.graphs += 1
            found.grew += reserved() - before

        graph.capture_begin, graph.capture_end = capture_begin, capture_end

    def forget(self) -> None:
        """Forget all so far: it was captured to be measured, and is gone."""
        self._found.clear()

    def rows(self) -> list[GraphSize]:
        """The sizes, largest first."""
        return sorted(self._found.values(), key=lambda found: -found.size)

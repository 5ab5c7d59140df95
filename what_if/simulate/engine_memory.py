"""Memory of a serving engine's worker: what it says itself, and CUDA graphs by size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from memprof.simulated_cuda import control

from .outside import take
from .wrapping import after_call, before_call

_T = TypeVar("_T")


class GraphSize(msgspec.Struct, kw_only=True):
    """Graphs for batches of one size, in tokens or requests, 0 where it is not known: how many,
    with how many kernels, and bytes by which the allocator's memory grew as they were captured.
    Graphs share a pool, so that the largest, which come first, add most."""

    size: int
    unit: str
    graphs: int = 0
    kernels: int = 0
    grew: int = 0


class Serving(msgspec.Struct, kw_only=True):
    """Memory of a worker of a serving engine, in bytes; None for what it does not say.

    Attributes:
        engine: its name and version.
        weights: of the model.
        activations: most beside weights in the run that profiles the model.
        outside: what vLLM itself found to be outside of torch.
        graphs_estimated, graphs: of CUDA graphs, as the engine estimated and then measured them.
        graph_sizes: graphs by size of a batch, largest first.
        kv_cache: of all blocks of keys and values.
        blocks, tokens: how many blocks there are, and tokens that they hold.
        longest: tokens of the longest request.
        requests: of that length at once.
    """

    engine: str
    weights: int | None = None
    activations: int | None = None
    outside: int | None = None
    graphs_estimated: int | None = None
    graphs: int | None = None
    graph_sizes: list[GraphSize] = []
    kv_cache: int | None = None
    blocks: int | None = None
    tokens: int | None = None
    longest: int | None = None
    requests: float | None = None


UNKNOWN = (0, "tokens")


class GraphSizes:
    """Counts what this process captures, from ``install`` on; ``next`` is set by whoever knows for
    which batches is captured next."""

    def __init__(self) -> None:
        self.next = UNKNOWN
        self._found: dict[tuple[int, str], GraphSize] = {}
        self._installed = False
        self._reserved = self._kernels = 0

    def install(self) -> None:
        """Follow captures, once, on the simulated device; imports torch."""
        import torch

        if self._installed or not control.simulated():
            return
        self._installed = True
        before_call(torch.cuda.CUDAGraph, "capture_begin", self._capture_begins)
        after_call(torch.cuda.CUDAGraph, "capture_end", self._capture_ended)

    def _capture_begins(self, *_: Any, **__: Any) -> None:
        self._reserved = sys.modules["torch"].cuda.memory_reserved()
        self._kernels = control.kernels(which="captured")

    def _capture_ended(self, *_: Any) -> None:
        size, unit = self.next
        found = self._found.setdefault(self.next, GraphSize(size=size, unit=unit))
        found.graphs += 1
        found.grew += sys.modules["torch"].cuda.memory_reserved() - self._reserved
        captured = control.kernels(which="captured") - self._kernels
        found.kernels += captured
        take("graph_kernel", captured)

    def forget(self) -> None:
        """Forget all so far: it was captured to be measured, and is gone."""
        self._found.clear()

    def rows(self) -> list[GraphSize]:
        """The sizes, largest first."""
        return sorted(self._found.values(), key=lambda found: -found.size)


SIZES = GraphSizes()


def read(value: Callable[[], _T], missing: Any = None) -> Any:
    """A figure, or what stands for it where this engine has other names."""
    try:
        return value()
    except Exception:
        return missing


def name_of(engine: str, package: str) -> str:
    """An engine's name with its version, where ``package``, which is imported, says one."""
    return f"{engine} {read(lambda: sys.modules[package].__version__, '')}".strip()

"""The time that a GPU takes for some work, where the proof kit has measured that GPU.

Note [Estimates from measured kernels]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``benchmarks/proof/kernels.py`` measures products, attention and operators of several sizes. Work
takes its least time by the data sheet (``speed.py``) times how far the nearest measured kernels
stayed behind theirs, nearer ones counting more, by the logarithms of their sizes; operators that
move memory take the time of their kind, interpolated by bytes between two measured sizes and
extrapolated at the rate of the last. No size is fitted to a program.
"""

from __future__ import annotations

import functools
import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .speed import Speed, speeds
from .work import ATTENTION, COPY, PRODUCT, Work, product

TABLES = Path(__file__).with_name("tables")
"""Folder of the tables, ``KEY.json`` of the GPU with that key."""
_NEIGHBOURS = 4

Sizes = tuple[float, ...]


@dataclass
class KernelTable:
    """Measured kernels of a GPU: how far each stays behind the data sheet, by its sizes.

    Attributes:
        launch_ns: that the host takes for a launch.
        graph_ns: that the host takes for the launch of a graph, the largest that was measured.
        kernel_ns: that the fastest kernel took.
    """

    speed: Speed
    launch_ns: float = 0.0
    graph_ns: float = 0.0
    kernel_ns: float = 0.0
    _behind: defaultdict[tuple[str, ...], list[tuple[Sizes, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _moving: defaultdict[str, list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def ns(self, work: Work, tf32: Collection[str] = ()) -> float:
        """Nanoseconds that work takes."""
        least = self.speed.ns(work, tf32)
        if work.kind in (PRODUCT, ATTENTION):
            rows = self._like(work)
            return max(least * (_nearest(rows, _sizes(work)) if rows else 1.0), self.kernel_ns)
        pattern = work.way if work.kind == COPY else work.pattern
        return max(least, self._by_bytes(pattern, work.nbytes))

    def knows(self, work: Work) -> bool:
        """Tells whether kernels like this work were measured. What only moves memory is like others
        that do; a product or a convolution of which none was is at the speed of the data sheet."""
        return not work.flops or bool(self._like(work))

    def _like(self, work: Work) -> Sequence[tuple[Sizes, float]]:
        rows = self._behind.get((work.kind, work.way, work.dtype), ())
        if not rows and work.dtype == "float16":  # whose tensor cores are as fast
            rows = self._behind.get((work.kind, work.way, "bfloat16"), ())
        return rows

    def _by_bytes(self, pattern: str, nbytes: int) -> float:
        rows = self._moving.get(pattern)
        if not rows:
            return 0.0
        place = bisect_left(rows, (nbytes, 0.0))
        if place == 0:
            return rows[0][1]
        if place == len(rows):
            last, ns = rows[-1]
            return ns * nbytes / last
        (low, below), (high, above) = rows[place - 1], rows[place]
        share = math.log(nbytes / low) / math.log(high / low)
        return float(below * (above / below) ** share)

    def add(self, row: dict[str, Any]) -> None:
        """Take in a row of the proof kit's file."""
        kind = row["kind"]
        if kind == "launch":
            self.launch_ns = row["host_us"]["median"] * 1e3
        elif kind == "graph":
            self.graph_ns = max(self.graph_ns, row["host_us"]["median"] * 1e3)
        elif kind == "copy" and "pinned" in row["operator"]:
            way = row["operator"].partition(",")[0]
            self._insert(way, row["bytes"], row["device_us"]["median"])
        elif kind == "bandwidth":
            self._insert(row["operator"], row["bytes"], row["us"]["median"])
            self.kernel_ns = min(self.kernel_ns or math.inf, row["us"]["median"] * 1e3)
        elif kind in ("gemm", "attention"):
            work = _measured(row)
            least = self.speed.ns(work)
            behind = row["us"]["median"] * 1e3 / least
            self._behind[(work.kind, work.way, work.dtype)].append((_sizes(work), behind))

    def _insert(self, pattern: str, nbytes: int, us: float) -> None:
        self._moving[pattern].append((nbytes, us * 1e3))
        self._moving[pattern].sort()


@functools.cache
def table_of(key: str) -> KernelTable | None:
    """The table of the GPU with that key, None if it was not measured."""
    path = TABLES / f"{key}.json"
    if not path.exists():
        return None
    table = KernelTable(speeds()[key])
    for row in json.loads(path.read_text(encoding="utf-8")):
        table.add(row)
    return table


def _measured(row: dict[str, Any]) -> Work:
    dtype = row["dtype"].removeprefix("torch.")
    if row["kind"] == "gemm":
        return product(dtype, row["m"], row["n"], row["k"], 1)
    shape = (row["batch"] * row["heads"], row["tokens"], row["size"])
    return Work(ATTENTION, row["flops"], row["bytes"], dtype, shape, way=row["direction"])


def _sizes(work: Work) -> Sizes:
    return tuple(math.log(max(1, n)) for n in work.shape)


def _nearest(rows: Sequence[tuple[Sizes, float]], sizes: Sizes) -> float:
    """Geometric mean over the nearest rows, weighted by the inverse square of how far each is."""
    near = sorted((math.dist(of_row, sizes), behind) for of_row, behind in rows)[:_NEIGHBOURS]
    weights = [1 / (distance**2 + 1e-6) for distance, _ in near]
    logs = (w * math.log(behind) for w, (_, behind) in zip(weights, near, strict=True))
    return math.exp(sum(logs) / sum(weights))

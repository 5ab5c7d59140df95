"""The least time that a GPU takes for some work: what its data sheet says of its speed."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .work import COMMUNICATION, COPY, Work

_TF32 = "tf32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of a GPU, by its maker's data sheet.

    Attributes:
        flops: FLOP/s of dense matrix products, by the type of their operands; ``tf32`` too.
        bandwidth: bytes/s of its memory.
        bus: bytes/s to and from the host, one way.
        link, network: bytes/s to other GPUs of its host, and to those of others, one way.
        source: where these figures stand.
    """

    flops: dict[str, float]
    bandwidth: float
    bus: float
    link: float
    network: float
    source: str

    def ns(self, work: Work, tf32: Collection[str] = ()) -> float:
        """The least nanoseconds that it takes: the larger of its FLOPs and its bytes at full speed.
        ``tf32`` has the kinds of work in float32 that may be done in TF32."""
        if work.kind == COPY:
            return work.nbytes / self.bus * 1e9
        if work.kind == COMMUNICATION:
            rate = self.link
            if work.way == "network":
                rate = min(rate, self.network * work.shape[0])
            return work.nbytes / rate * 1e9
        peak = self.peak(type_of(work, tf32))
        return max(work.flops / peak, work.nbytes / self.bandwidth) * 1e9

    def peak(self, dtype: str) -> float:
        """FLOP/s for operands of a type; one that the data sheet leaves out is at most as fast as
        the fastest."""
        return self.flops.get(dtype, max(self.flops.values()))


def type_of(work: Work, tf32: Collection[str]) -> str:
    """The type of the operands of work as a GPU computes with them; ``tf32`` as of ``Speed.ns``."""
    return _TF32 if work.kind in tf32 and work.dtype == "float32" else work.dtype


@functools.cache
def speeds() -> dict[str, Speed]:
    """Speeds of the GPUs in ``speeds.toml``, by the key of ``simulated_cuda/gpus.toml``."""
    text = Path(__file__).with_name("speeds.toml").read_bytes()
    rows = msgspec.toml.decode(text, type=dict[str, dict[str, float | str]])
    return {key: _speed(row) for key, row in rows.items()}


def _speed(row: dict[str, float | str]) -> Speed:
    source = str(row.pop("source"))
    figures = {name: float(figure) for name, figure in row.items()}
    moved = {name: figures.pop(name) * 1e9 for name in ("bandwidth", "bus", "link", "network")}
    flops = {dtype: figure * 1e12 for dtype, figure in figures.items()}
    return Speed(flops=flops, source=source, **moved)

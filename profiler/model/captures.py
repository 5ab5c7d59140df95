"""Memory that CUDA graphs hold: captures, whoever made them, and the pools that they allocate
in."""

from __future__ import annotations

from dataclasses import dataclass, field

from .held import Held
from .limits import Count, Int
from .provenance import SourceFrame


@dataclass(slots=True)
class GraphCapture:
    """One capture of a CUDA graph. Bytes are those of blocks in its pool, rounding included.

    Attributes:
        number: from 1, in the order in which captures of the process began.
        name: that somebody gave it (``memprof.name_graphs``), or the function of a graph tree.
        maker: who captured: ``torch.cuda.graph``, ``make_graphed_callables``, ``vLLM``, …
        frame: the line of the program that captured; None if there was none.
        stream: the stream on which it allocated, 0 if it did not.
        start_ns: ``time.perf_counter_ns()`` when it began.
        failed: why there is no graph; empty if there is one.
        deleted: whether the graph was deleted by the instant that its pool is described at.
        requests, asked: blocks that it asked for, and their bytes, one after the other.
        peak: bytes of those that were there at once, at most.
        rounding: of ``peak``, bytes beyond what was asked for.
        used: bytes of the pool at whose addresses it had a block at any time: what a replay may
            write to.
        alone: of ``used``, what no other graph of the pool uses.
        stays: bytes that are there after it (``Fate.stays``).
        grew: by how many bytes its pool grew during the capture.
        at_peak: largest first: their bytes and ``rounding`` are ``peak``.
        left: what stays, largest first; without rounding.
    """

    number: Int
    name: str = ""
    maker: str = ""
    frame: SourceFrame | None = None
    stream: Int = 0
    start_ns: Int = 0
    duration_ns: Int = 0
    failed: str = ""
    deleted: bool = False
    requests: Int = 0
    asked: Int = 0
    peak: Int = 0
    rounding: Int = 0
    used: Int = 0
    alone: Int = 0
    stays: Int = 0
    grew: Int = 0
    at_peak: list[Held] = field(default_factory=list)
    left: list[Held] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Bytes of a pool that the same graphs use one after the other, by ascending numbers."""

    nbytes: Count
    graphs: tuple[Int, ...]


@dataclass(slots=True)
class GraphPool:
    """A private pool of the allocator, as it was at one instant: the end of the session, or where
    all graphs were deleted by then the end of the last capture into it.

    Every byte is counted twice. By *when the pool got it*: ``reserved`` is what ``graphs`` grew it
    by and ``grew_outside``. By *who uses it*: ``reserved`` is ``shares``, ``other_shares``,
    ``live_outside`` and ``unused``.

    Attributes:
        name: as ``PoolShare.name``.
        reserved, segments: bytes that it has from the device, in how many pieces.
        most_reserved: the most at the end of a capture, or of the session.
        at_end: bytes that it had at the end of the session.
        gone: whether all of its graphs were deleted by then.
        graphs: in the order of their captures.
        grew_outside: by how many bytes it grew between captures and before them, as in warm-ups;
            less than 0 where segments were given back.
        shares: what deleted graphs do not use any more is not among it; most bytes first.
        other_shares: bytes that further combinations of graphs use.
        outside: what is there that no capture asked for, largest first.
        live_outside: bytes of blocks that no capture asked for, where no graph writes.
        unused: bytes that are in no block now and that no graph uses.
        notes: what else a reader should know, a line each.
    """

    device: str
    name: str
    reserved: Int = 0
    segments: Int = 0
    most_reserved: Int = 0
    at_end: Int = 0
    gone: bool = False
    graphs: list[GraphCapture] = field(default_factory=list)
    grew_outside: Int = 0
    shares: list[SharedBytes] = field(default_factory=list)
    other_shares: Int = 0
    outside: list[Held] = field(default_factory=list)
    live_outside: Int = 0
    unused: Int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def shared(self) -> int:
        """Bytes that more than one graph uses."""
        return sum(s.nbytes for s in self.shares if len(s.graphs) > 1) + self.other_shares

"""Everything that was reserved on a device at the instant that decides, by what it was for."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from .category import Category
from .held import Held
from .limits import Count, Int
from .provenance import SourceFrame


class WhyNot(str, Enum):
    """Why a request did not fit; the first of these that holds: Note [Why a request did not fit] in
    ``profiler/sources/allocator/failed_request.py``."""

    TOO_LARGE = "too_large"
    """The request is larger than all that the process may have."""
    PIECES = "pieces"
    """There is enough, in pieces of which none is large enough: fragmentation."""
    STREAMS = "streams"
    """There would be enough with what other streams have free, or may still be using."""
    POOLS = "pools"
    """There would be enough with what is free in pools that other requests cannot use."""
    LIMIT = "limit"
    """The device has enough, and the process may not have it
    (``torch.cuda.set_per_process_memory_fraction``)."""
    OUTSIDE = "outside"
    """There would be enough but for what other processes or libraries hold on the device."""
    FULL = "full"
    """Everything is in use."""


@dataclass(frozen=True, slots=True)
class Relief:
    """A change that saves memory: bytes at most, and the change in words."""

    nbytes: Int
    change: str


@dataclass(slots=True)
class AllocationFailure:
    """An allocation that failed, and the room there was at that moment. Bytes everywhere.

    Attributes:
        wanted: that the allocator tried to get from the device: a segment for the request.
        requested: that were asked for, rounded up to 512; 0 where only ``wanted`` is known, which
            is up to 2 MiB more (20 MiB for requests of 1 to 10 MiB).
        device_free: that the device had left.
        limit: that the allocator may reserve; 0 if that is all of the device.
        outside: of the device that this process's allocator has not reserved: other processes,
            CUDA's context, libraries.
        free: inside segments of the request's pool and stream.
        largest_free: largest piece of these that could have served a request of its size.
        free_of_streams: inside segments of other streams, or freed while a stream may still use it.
        free_of_pools: inside segments of pools that the request cannot use.
        frame, modules, nodes: as in ``Held``.
        graph: label of the compiled graph, e.g. ``0/0 forward``; empty for eager code.
        operation: of autograd whose backward was running, e.g. ``MulBackward0``; else empty.
        called_from: line of the call of ``backward()`` in which that was; None if not known.
        activity: what memprof did, e.g. ``recording 0/0 forward as a CUDA graph``, so that the call
            is made again without; else empty.
        thread: its name.
        time_ns: ``time.time_ns()``.
        count: how often a request of this place has failed by then, this time included.
        earlier: other requests that had failed in this process before.
    """

    wanted: Int
    requested: Int
    why: WhyNot
    device_free: Int = 0
    limit: Int = 0
    outside: Int = 0
    free: Int = 0
    largest_free: Int = 0
    free_of_streams: Int = 0
    free_of_pools: Int = 0
    frame: SourceFrame | None = None
    modules: str = ""
    nodes: str = ""
    graph: str = ""
    operation: str = ""
    called_from: SourceFrame | None = None
    activity: str = ""
    thread: str = ""
    time_ns: Int = 0
    count: Int = 1
    earlier: Int = 0

    def left(self, reserved: int) -> int:
        """Bytes that the allocator, with so many ``reserved``, could still get: what the device had
        left, within the limit."""
        return min(self.device_free, max(0, self.limit - reserved) if self.limit else sys.maxsize)


@dataclass(frozen=True, slots=True)
class PoolShare:
    """One of the allocator's pools at that instant, in bytes.

    Attributes:
        name: ``general``, ``private`` and a number (CUDA graphs, ``torch.cuda.MemPool``), or
            ``gone`` for segments that were given back before anybody asked.
        free: of what is reserved in segments, bytes in no block.
        largest_free: the largest range of these.
        with_free: segments that have any; 0 where they were not counted.
    """

    name: str
    reserved: Int
    free: Int
    segments: Int
    largest_free: Int
    with_free: Int = 0


@dataclass(frozen=True, slots=True)
class Outside:
    """Memory in bytes that the device gives without torch's allocator, e.g. for a ``CUDA context``;
    ``estimated`` where it was not measured but taken from ``source``."""

    what: str
    nbytes: Int
    estimated: bool
    source: str


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request, in bytes, that the allocator could not serve, with its place as in ``Held``,
    and how often."""

    nbytes: Int
    modules: str = ""
    frame: SourceFrame | None = None
    count: Int = 1


@dataclass(frozen=True, slots=True)
class HostRead:
    """A line that brought values of the device to the host, None where no Python was running: how
    often, and bytes in all."""

    frame: SourceFrame | None
    count: Int
    nbytes: Int


@dataclass(slots=True)
class DeviceAccount:
    """The account of one device at its peak: ``reserved`` is what the rows had asked for, with
    ``rounding``, ``awaiting``, what is free in ``pools``, ``given_back`` and ``unexplained``.

    Where an allocation failed, that is the instant, and not the peak; and where nobody watched the
    device it is the one at which the account was made (``present``).

    Attributes:
        name: of the model, e.g. ``NVIDIA H100 80GB HBM3``.
        total: bytes of the device's memory.
        simulated: whether nothing was computed.
        reserved: the most bytes that the allocator had from the device, by its own counters.
        allocated: bytes of blocks at the instant at which most was reserved.
        most_allocated: the most bytes of blocks at any instant, by the allocator's own counters.
        step: optimizer step in which the instant lies, from 1; 0 before any is known.
        phase: ``forward``, ``backward`` or ``optimizer``; empty where there was no backward, and if
            ``present``, as are the rows' lines.
        rows: what had been asked for and not let go of, largest first.
        rounding: bytes of blocks beyond what was asked for.
        awaiting: bytes of blocks that the program had let go of while a stream may use them.
        pools: all that is reserved, with what of it is free.
        unexplained: ``reserved`` less everything above: 0 unless the history began late or the
            allocator works by rules that memprof does not know.
        outside: beside the allocator.
        failed: requests that could not be served, in order.
        host_reads: where the program looked at values, most often first.
        steps: optimizer steps that were made.
        ended: why the run ended, e.g. ``3 optimizer steps``.
        notes: what else a reader should know, a line each.
        failure: the allocation that failed at the instant; None if none did.
        given_back: bytes of ``reserved`` that had gone back to the device by that instant.
        most_requested: the most bytes that blocks had been asked for at any instant, by the
            allocator's own counters; 0 if not known.
    """

    device: str
    name: str = ""
    total: Int = 0
    simulated: bool = False
    reserved: Int = 0
    allocated: Int = 0
    most_allocated: Int = 0
    step: Int = 0
    phase: str = ""
    rows: list[Held] = field(default_factory=list)
    rounding: Int = 0
    awaiting: Int = 0
    pools: list[PoolShare] = field(default_factory=list)
    unexplained: Int = 0
    outside: list[Outside] = field(default_factory=list)
    failed: list[FailedRequest] = field(default_factory=list)
    host_reads: list[HostRead] = field(default_factory=list)
    steps: Int = 0
    elapsed_ns: Int = 0
    ended: str = ""
    notes: list[str] = field(default_factory=list)
    failure: AllocationFailure | None = None
    present: bool = False
    given_back: Int = 0
    most_requested: Count = 0

    @property
    def live(self) -> int:
        """Bytes that had been asked for and not let go of."""
        return sum(r.nbytes for r in self.rows)

    @property
    def free(self) -> int:
        """Bytes of segments in no block."""
        return sum(p.free for p in self.pools)

    def other_parts(self) -> list[tuple[str, str, int]]:
        """Parts of ``reserved`` that are in no row: name, words for a report, and bytes of each."""
        pools = []
        for p in self.pools:
            n = p.with_free or p.segments
            of = {"general": "", "gone": ", given back later"}
            words = f"free inside {n:,} segment{'s' * (n != 1)}"
            words += of.get(p.name, f" of pool {p.name}")
            pools.append((f"free in {p.name} segments", words, p.free))
        words = "given back to the device since the peak"
        gone = [("given back", words, self.given_back)] if self.given_back else []
        return [
            ("rounding", "rounding: blocks are larger than what was asked for", self.rounding),
            ("awaiting streams", "freed, while a stream may still use it", self.awaiting),
            *pools,
            *gone,
            ("not explained", "not explained", self.unexplained),
        ]

    @property
    def explained(self) -> int:
        """Bytes of ``reserved`` whose use is known."""
        return self.live + self.rounding + self.awaiting + self.free + self.given_back

    @property
    def outside_bytes(self) -> int:
        """Bytes of the device that torch's allocator did not reserve, see ``Outside``."""
        return sum(o.nbytes for o in self.outside)

    @property
    def needed(self) -> int:
        """Bytes that the device gave in all."""
        return self.reserved + self.outside_bytes

    def parts(self) -> list[tuple[str, int]]:
        """All parts of ``reserved``, categories first: words for a report and bytes of each."""
        found = [(p.label, n) for p, n in self.by_category().items()]
        return found + [(words, nbytes) for _, words, nbytes in self.other_parts()]

    def by_category(self) -> dict[Category, int]:
        """Bytes of ``rows`` by category, largest first."""
        found: Counter[Category] = Counter()
        for r in self.rows:
            found[r.category] += r.nbytes
        return dict(found.most_common())

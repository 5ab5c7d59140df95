"""The allocation at whose failure an account was made: what it wanted, and why it did not fit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .limits import Int
from .provenance import SourceFrame


class WhyNot(str, Enum):
    """Why a request did not fit; the first of these that holds.

    Note [Why a request did not fit] in ``profiler/device/failure.py``.
    """

    TOO_LARGE = "too_large"
    """Larger than all that the process may have."""
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
    """What would have made room.

    Attributes:
        nbytes: how much at most.
        change: what to do, in words.
        frame: the line it is about, None where it is about no single one.
    """

    nbytes: Int
    change: str
    frame: SourceFrame | None = None


@dataclass(slots=True)
class Failure:
    """An allocation that failed, and the room there was at that moment. Bytes everywhere.

    Attributes:
        wanted: that the allocator tried to get from the device: a segment for the request.
        requested: that were asked for, rounded up to 512; 0 where only ``wanted`` is known, which
            is up to 2 MiB more (20 MiB for requests of 1 to 10 MiB).
        why: why there was no room.
        device_free: that the device had left.
        limit: that the allocator may reserve; 0 if that is all of the device.
        outside: of the device that this process's allocator has not reserved: other processes,
            CUDA's context, libraries.
        free: inside segments of the request's pool and stream.
        largest_free: largest piece of these that could have served a request of its size.
        free_of_streams: inside segments of other streams, or freed while a stream may still use it.
        free_of_pools: inside segments of pools that the request cannot use.
        frame: innermost frame of the program; None where no Python was running.
        modules: as in ``AccountRow``.
        nodes: FX nodes, for compiled code.
        graph: label of the compiled graph, e.g. ``0/0 forward``; empty for eager code.
        operation: of autograd whose backward was running, e.g. ``MulBackward0``; else empty.
        called_from: line of the call of ``backward()`` in which that was; None if not known.
        doing: what memprof was about, e.g. ``recording 0/0 forward as a CUDA graph``, so that the
            call is made again without; else empty.
        thread: name of the thread.
        time_ns: ``time.time_ns()``.
        count: how often a request of this place has failed by then, this time included.
        earlier: other requests that had failed in this process before.
        reliefs: what would have helped, most first.
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
    doing: str = ""
    thread: str = ""
    time_ns: Int = 0
    count: Int = 1
    earlier: Int = 0
    reliefs: tuple[Relief, ...] = ()

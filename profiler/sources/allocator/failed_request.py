"""Why a request did not fit: from the allocator's books, no torch.

Note [Why a request did not fit]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
By the time the allocator gives up it has given back every segment that is wholly free. Places are
added up in the order in which they are near to the request, and the first with which there would
have been enough is the reason:

1. what the device has left, with the free pieces of segments that could serve the request, of its
   pool and its stream: there is enough, but no piece is large enough (*pieces*);
2. with what other streams have free, or may still use of what was let go of (*streams*);
3. with what is free in other pools: a graph's pool serves nothing but that graph, and a capture is
   served from its own pool alone (*pools*);
4. with what the device has beyond the limit that the program set itself (*limit*);
5. with what others have on the device, ``CONTEXT`` for CUDA itself left aside (*outside*).

A request larger than all that the process may have is *too large* before any of this. Small
requests (up to 1 MiB) and others have segments of their own: what is free in those of the other
kind is a piece that is of no use, and adds to the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memprof.profiler.model import AllocationFailure, WhyNot
from memprof.profiler.model.allocator_rules import SMALL_SEGMENT

CONTEXT = 1 << 30
"""Bytes that CUDA and its libraries may have on a device before other processes are thought of."""


def explain_failure(
    segments: Iterable[Mapping[str, Any]],
    *,
    wanted: int,
    allowed: int,
    device_total: int,
    device_free: int,
    stream: int = 0,
    pool: tuple[int, int] | None = (0, 0),
    requested: int = 0,
) -> AllocationFailure:
    """See Note [Why a request did not fit].

    Args:
        segments: of its device, as a snapshot of that moment has them.
        wanted, allowed: bytes that the allocator tried to get, and may have, of the device.
        device_total, device_free: bytes.
        stream: that it is for.
        pool: of the allocator that would serve it; None for one that is not known.
        requested: bytes asked for, 0 if not known.
    """
    small = wanted <= SMALL_SEGMENT
    reserved = usable = largest = of_streams = of_pools = 0
    for s in segments:
        reserved += s["total_size"]
        same_pool = tuple(s.get("segment_pool_id", (0, 0))) == pool
        same_kind = (s.get("segment_type") == "small") is small
        same_stream = s.get("stream", 0) == stream
        for block in s["blocks"]:
            state, nbytes = block["state"], block["size"]
            if state == "active_allocated":
                continue
            if not same_pool:
                of_pools += nbytes
            elif not same_stream or state != "inactive":
                of_streams += nbytes
            else:
                usable += nbytes
                largest = max(largest, nbytes if same_kind else 0)
    limit = allowed if allowed < device_total else 0
    outside = max(0, device_total - device_free - reserved)
    room = device_free if not limit else min(device_free, max(0, limit - reserved))
    why = WhyNot.TOO_LARGE if wanted > allowed else WhyNot.FULL
    places = (
        (WhyNot.PIECES, usable),
        (WhyNot.STREAMS, of_streams),
        (WhyNot.POOLS, of_pools),
        (WhyNot.LIMIT, device_free - room),
        (WhyNot.OUTSIDE, max(0, outside - CONTEXT)),
    )
    for reason, nbytes in places:
        room += nbytes
        if why is WhyNot.FULL and nbytes and room >= wanted:
            why = reason
    return AllocationFailure(
        wanted=wanted,
        requested=requested,
        why=why,
        device_free=device_free,
        limit=limit,
        outside=outside,
        free=usable,
        largest_free=largest,
        free_of_streams=of_streams,
        free_of_pools=of_pools,
    )

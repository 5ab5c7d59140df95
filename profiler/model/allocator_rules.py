"""Rules by which torch's caching allocator serves requests (c10/cuda/CUDACachingAllocator.cpp).

All figures are bytes.
"""

from __future__ import annotations

ROUNDING = 512
"""Unit to which a request is rounded up, and the least that is worth cutting off a block."""

SMALL = 1 << 20
"""The largest rounded request that is served from the pool of small blocks; and the largest rest
of a block of the other pool that is not cut off."""

SMALL_SEGMENT = 2 << 20
"""Size of the segments from which small requests are served, and the unit in which the allocator
takes memory from a device."""

LARGE_SEGMENT = 20 << 20
"""Size of a segment for a request of more than ``SMALL`` and less than ``OWN_SEGMENT``."""

OWN_SEGMENT = 10 << 20
"""The smallest request that gets a segment of its own size."""


def rounded(nbytes: int) -> int:
    """Returns the bytes of the smallest block for a request, by default settings."""
    return -(-nbytes // ROUNDING) * ROUNDING


def is_cut(rest: int, size: int) -> bool:
    """Whether a block of ``size`` bytes is cut off if that leaves ``rest`` bytes: c10's
    ``should_split`` for a segment that does not grow."""
    return rest >= ROUNDING if size <= SMALL else rest > SMALL


def segment_size(size: int) -> int:
    """Returns the bytes of the segment that the allocator gets for a rounded request."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT

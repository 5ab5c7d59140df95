"""What a device gives beside torch's allocator: estimates, each with its source."""

from __future__ import annotations

from memprof.profiler.model import Outside

MIB = 1 << 20

CONTEXT_MIB = 512
"""A CUDA context with torch's kernels, MiB; what the simulated device keeps for it."""

NCCL_MIB = 600
"""A communicator's buffers on one device, MiB; ``_NCCL_SOURCE``."""

_CONTEXT_SOURCE = (
    "a process with torch and its kernels loaded lazily; 300 to 600 MiB are seen, by GPU and driver"
)
_NCCL_SOURCE = (
    "buffers of NCCL's channels (NCCL_BUFFSIZE 4 MiB, LL128, LL) for the peers of one node; "
    "from 200 MiB to over 1 GiB by topology and number of communicators"
)


def outside(grouped: bool) -> list[Outside]:
    """Estimates for a device.

    Args:
        grouped: whether the process made process groups with others.
    """
    found = [Outside("CUDA context", CONTEXT_MIB * MIB, True, _CONTEXT_SOURCE)]
    if grouped:
        found.append(Outside("NCCL", NCCL_MIB * MIB, True, _NCCL_SOURCE))
    return found

"""What an arena saves: minor page faults, counted, and what one of them costs."""

from __future__ import annotations

import ctypes
import functools
import resource
import time

import torch

from .memory import LeasePool, Tokens


def minor_page_faults() -> int:
    """Minor page faults so far: of this thread if torch computes in no other, else of the
    process. Other threads of the user's add to the second."""
    alone = torch.get_num_threads() == 1
    who = resource.RUSAGE_THREAD if alone else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_minflt


@functools.cache
def nanoseconds_per_fault() -> float:
    """What one minor page fault costs here, measured once on 2 MiB."""
    now = time.perf_counter_ns
    found = []
    nbytes = 2 << 20  # too small for huge pages
    for _ in range(3):
        view = LeasePool().lease(nbytes, Tokens(1))
        assert view is not None
        # No tensor: a profiler that runs would take it for the program's.
        memory = (ctypes.c_char * nbytes).from_buffer(view)
        count, start = minor_page_faults(), now()
        ctypes.memset(memory, 0, nbytes)
        count, first = minor_page_faults() - count, now() - start
        start = now()
        ctypes.memset(memory, 0, nbytes)
        found.append((first - (now() - start)) / max(1, count))
    return max(0.0, min(found))

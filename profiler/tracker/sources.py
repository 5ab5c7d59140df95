"""What each source can and cannot see, as every record says it."""

from __future__ import annotations

import sys

from memprof.profiler.model import Source

from .settings import TrackerSettings


def sources(
    settings: TrackerSettings, *, cuda: bool, mps: bool, compiled: bool, cpu_count: str
) -> tuple[Source, ...]:
    """The sources of a record.

    Args:
        settings: of the tracker.
        cuda, mps: whether the device is in use.
        compiled: whether memprof compiled something.
        cpu_count: "" if torch's CPU allocations are counted, else why not.
    """
    return (
        Source(
            "python tensors",
            True,
            "storages that a live Python tensor refers to, each once: parameters, gradients, "
            "optimizer state, whatever a variable or container holds",
            "memory without a Python object: activations that eager autograd holds, workspaces, "
            "what lives shorter than from one look to the next"
            + ("" if settings.scan_at_start else "; tensors made before the tracker started"),
        ),
        Source(
            "resident memory",
            sys.platform == "linux",
            "the physical memory of the process: tensors, Python, libraries",
            "what part of it is tensors; memory that was freed and not yet returned to the system "
            "still counts; the kernel's count lags by some hundred KiB"
            if sys.platform == "linux"
            else "read from /proc, which this system does not have",
        ),
        Source(
            "malloc",
            sys.platform == "linux",
            "bytes that glibc's malloc has handed out, CPU tensors and everything else",
            "Python's small objects; not asked where that takes long (many free chunks)"
            if sys.platform == "linux"
            else "glibc only",
        ),
        Source(
            "torch CPU allocator",
            not cpu_count,
            "every CPU tensor's bytes, those that only autograd holds included, since the start",
            cpu_count or "what was allocated before the tracker started",
        ),
        Source(
            "CUDA allocator",
            cuda,
            "bytes handed out and reserved, the highest mark, private pools",
            "memory that does not come from torch's allocator: contexts, NCCL, other libraries"
            if cuda
            else "CUDA was not in use",
        ),
        Source(
            "MPS allocator",
            mps,
            "bytes handed out and reserved",
            "a highest mark" if mps else "no tensor on MPS was seen",
        ),
        Source(
            "compiled graphs",
            compiled,
            "node, category and name of tensors that memprof compiled; every byte inside calls",
            "what other backends compiled, and eager code"
            if compiled
            else "memprof compiled nothing in this process",
        ),
    )

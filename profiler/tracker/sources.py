"""Where a record's figures come from, and what each source can and cannot see."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from memprof.profiler.model import Source

from ._torch_compat import CpuAllocatorCount, cuda_in_use
from .memory import Accelerators, ProcessMemory
from .tensors import LiveTensors


@dataclass(slots=True)
class Sources:
    """All that a tracker asks.

    Attributes:
        tensors: the live Python tensors.
        process: resident memory and malloc.
        accelerators: the allocators of devices.
        cpu_count: torch's count of CPU allocations.
        no_cpu_count: why that does not count, "" if it does.
        scanned: whether tensors of before the tracker's start were looked for.
    """

    tensors: LiveTensors
    process: ProcessMemory = field(default_factory=ProcessMemory)
    accelerators: Accelerators = field(default_factory=Accelerators)
    cpu_count: CpuAllocatorCount = field(default_factory=CpuAllocatorCount)
    no_cpu_count: str = "off; the setting cpu_allocator switches it on"
    scanned: bool = True


def described(sources: Sources, *, compiled: bool) -> tuple[Source, ...]:
    """The sources as every record says them.

    Args:
        sources: of the tracker.
        compiled: whether memprof compiled something in this process.
    """
    linux = sys.platform == "linux"
    # Name, whether it is used, what it sees, what it does not; and why it is not used.
    found = (
        (
            "python tensors",
            True,
            "storages that a live Python tensor refers to, each once: parameters, gradients, "
            "optimizer state, whatever a variable or container holds",
            "memory without a Python object: activations that eager autograd holds, workspaces, "
            "what lives shorter than from one look to the next"
            + ("" if sources.scanned else "; tensors made before the tracker started"),
            "",
        ),
        (
            "resident memory",
            linux,
            "the physical memory of the process: tensors, Python, libraries",
            "what part of it is tensors; memory that was freed and not yet returned to the system "
            "still counts; the kernel's count lags by some hundred KiB",
            "read from /proc, which this system does not have",
        ),
        (
            "malloc",
            linux,
            "bytes that glibc's malloc has handed out, CPU tensors and everything else",
            "Python's small objects; not asked where that takes long (many free chunks)",
            "glibc only",
        ),
        (
            "torch CPU allocator",
            not sources.no_cpu_count,
            "every CPU tensor's bytes, those that only autograd holds included, since the start",
            "what was allocated before the tracker started",
            sources.no_cpu_count,
        ),
        (
            "CUDA allocator",
            cuda_in_use(),
            "bytes handed out and reserved, the highest mark, private pools",
            "memory that does not come from torch's allocator: contexts, NCCL, other libraries",
            "CUDA was not in use",
        ),
        (
            "MPS allocator",
            sources.accelerators.mps,
            "bytes handed out and reserved",
            "a highest mark",
            "no tensor on MPS was seen",
        ),
        (
            "compiled graphs",
            compiled,
            "node, category and name of tensors that memprof compiled; every byte inside calls",
            "what other backends compiled, and eager code",
            "memprof compiled nothing in this process",
        ),
    )
    return tuple(
        Source(name, used, sees, misses if used else why) for name, used, sees, misses, why in found
    )

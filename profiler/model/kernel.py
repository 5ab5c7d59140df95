"""A kernel that a device ran, as a trace of ``torch.profiler`` has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """One run of a kernel. Times are nanoseconds since 1970.

    Attributes:
        launched_ns: when the host launched it, or the CUDA graph that it is of; None if not known.
        graph, nodes: what ``annotate_kernels`` said of it, "" where it was not on.
    """

    name: str
    device: int
    stream: int
    start_ns: int
    end_ns: int
    launched_ns: int | None = None
    graph: str = ""
    nodes: str = ""

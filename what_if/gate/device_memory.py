"""The fixture ``device_memory``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Peak:
    """Peaks of device memory within a span, in bytes: the most reserved, the most allocated in
    blocks, and those allocated when it began."""

    reserved: int
    allocated: int
    before: int

    @property
    def grown(self) -> int:
        """The most bytes of blocks beyond those when it began."""
        return self.allocated - self.before


class DeviceMemory:
    """Memory of a device as torch's allocator counts it, in bytes. The peak of the whole test,
    which the mark's limit is for, is counted apart."""

    def allocated(self, device: int = 0) -> int:
        """Bytes of blocks now."""
        import torch

        return torch.cuda.memory_allocated(device)

    def reserved(self, device: int = 0) -> int:
        """Bytes that the allocator has from the device now."""
        import torch

        return torch.cuda.memory_reserved(device)

    def peak(self, function: Callable[[], _T], device: int = 0) -> tuple[_T, Peak]:
        """Call something; what it returned, and the peak. Sets torch's peak counters back, as
        ``torch.cuda.reset_peak_memory_stats`` does."""
        import torch

        torch.cuda.current_device()  # which starts CUDA
        torch.cuda.reset_peak_memory_stats(device)
        before = self.allocated(device)
        result: Any = function()
        most = torch.cuda.max_memory_reserved(device), torch.cuda.max_memory_allocated(device)
        return result, Peak(*most, before)

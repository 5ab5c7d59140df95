"""Helpers of the tests on a device that is nearly full."""

from __future__ import annotations

import torch

from memprof.profiler.model import LedgerKind

from .support import manager

MIB = 1 << 20


def leave(nbytes: int) -> None:
    """From here on the process may take so many bytes more from the device."""
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + nbytes
    torch.cuda.set_per_process_memory_fraction((allowed + 0.5) / total)


def scratch(mib: int) -> torch.Tensor:
    """So much memory."""
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def one(value: float = 1.0) -> torch.Tensor:
    """A small input."""
    return torch.full((4,), float(value), device="cuda")


def with_scratch(mib: int, x: torch.Tensor) -> list[torch.Tensor]:
    """``x + 1``, with scratch memory."""
    held = scratch(mib)
    return [x + 1.0 if held.numel() else x]


def reasons(kind: LedgerKind) -> list[str]:
    """What the ledger says of one kind."""
    return [e.reason for e in manager().entries() if e.kind is kind]

"""Memory that a device gives beside torch's allocator, as ``outside.toml`` estimates it.

Note [What an engine has to see]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A serving engine gives its cache what is free after a first run, so that what a driver takes by then
must be in use on the simulated device: the context from the start, kernels of an engine and graphs
when ``take`` is called. NCCL's buffers are added to an account alone.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memprof.profiler.model import Outside
from memprof.simulated_cuda import control

if TYPE_CHECKING:
    import torch

_ROWS = Path(__file__).with_name("outside.toml")
_PAGE = 2 << 20
_taken: Counter[str] = Counter()
_allocated: Counter[str] = Counter()


@functools.cache
def estimates() -> dict[str, Outside]:
    """Returns the rows of ``outside.toml`` by key."""
    rows = msgspec.toml.decode(_ROWS.read_bytes())
    return {k: Outside(r["what"], r["bytes"], True, r["source"]) for k, r in rows.items()}


def take(key: str, times: int = 1) -> None:
    """Take so many times what is estimated from the simulated device, until the process ends.

    Raises:
        torch.OutOfMemoryError: the device has not so much left.
    """
    if not times or not control.simulated():
        return
    what = estimates()[key]
    nbytes = _taken[key] + what.nbytes * times
    # As a driver does, in whole pages: the next ones may have room in the last.
    lacking = nbytes - _allocated[key]
    pages = -(-lacking // _PAGE) * _PAGE
    if pages > 0 and not control.take(pages):
        import torch

        raise torch.OutOfMemoryError(f"CUDA out of memory: no room for {what.what}")
    _taken[key] = nbytes
    _allocated[key] += max(pages, 0)


def take_once(key: str) -> None:
    """Take what is estimated, unless this process has: it loads its kernels once, for all of its
    engines."""
    if key not in _taken:
        take(key)


def taken() -> list[Outside]:
    """Returns what this process has taken so."""
    return [replace(estimates()[key], nbytes=nbytes) for key, nbytes in _taken.items()]


def asked_for(device: torch.device) -> list[Outside]:
    """Returns what a process that took ``taken`` of a simulated device has asked CUDA for itself,
    past torch's allocator: buffers that processes share, for the most part."""
    import torch

    if not control.simulated():
        return []
    by_torch = torch.cuda.memory_reserved(device)
    estimated = estimates()["context"].nbytes + sum(_allocated.values())
    nbytes = control.used(device.index) - by_torch - estimated
    source = "shared with other processes, or asked for by an extension; at the end of the run"
    return [Outside("symmetric memory, buffers", nbytes, False, source)] if nbytes > 0 else []

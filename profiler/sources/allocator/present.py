"""The account of this instant: what every reserved byte is for, without anybody having watched.

Note [What can be said without a history]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The allocator tells the most that it ever had reserved and which blocks there are; whose a block is
says the process: modules, optimizers, Python's tensors, autograd's graphs (``holders.py``). A look
takes about a second for a million objects. What lay in memory that is free by now it cannot tell:
of that the counters have the bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from memprof.profiler.model import Category, DeviceAccount
from memprof.profiler.model.address_ranges import has, merged

from . import _torch_compat as compat
from .account import HolderOf, explain
from .history import AllocatorBlock, AllocatorHistory
from .holders import Holders
from .known import KnownMemory, Objects, state_of
from .marks import Mark, Phase
from .totals import most, named, outside

NOBODY = "(no Python object: libraries, C++)"
"""Holder of blocks whose holder was not found: workspaces, memory that C++ holds."""

WORKSPACE = "(cuBLAS, by its size; no tensor has it)"
"""Holder of a block without one that has a size of cuBLAS's workspaces."""

IN_POOL = "(a private pool: CUDA graphs)"
"""Holder of a block without one in a private pool of the allocator."""


def present_accounts() -> list[DeviceAccount]:
    """The account of each CUDA device that this process uses, the one with most first.

    Takes host memory alone; starts nothing.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    used = [i for i in range(torch.cuda.device_count()) if torch.cuda.max_memory_reserved(i)]
    if not used:
        return []
    segments, settings = compat.segments_now()
    look = Objects().of_process()
    holders = Holders()
    found = []
    for i in used:
        own = [s for s in segments if s["device"] == i]
        account = unwatched_account(i, own, settings, look, holder_rules(holders, own))
        account.present = True
        account.given_back = torch.cuda.max_memory_reserved(i) - account.reserved
        account.reserved += account.given_back
        account.outside = outside(i)
        found.append(account)
    return sorted(found, key=lambda a: -a.reserved)


def optimizer_state() -> dict[str, int]:
    """Bytes of tensors that optimizers of this process keep as their state, by device."""
    storages: dict[tuple[str, int], int] = {}  # each once: states may be views of one
    for optimizer in compat.existing(torch.optim.Optimizer):
        for tensor in state_of(optimizer):
            for address, nbytes in compat.memory_of(tensor, ""):
                storages[str(tensor.device), address] = nbytes
    found: Counter[str] = Counter()
    for (device, _), nbytes in storages.items():
        found[device] += nbytes
    return dict(found)


def holder_rules(holders: Holders, segments: Sequence[dict[str, Any]]) -> HolderOf:
    """Function from a block of these segments to its category and holder."""
    private = merged(
        (s["address"], s["address"] + s["total_size"])
        for s in segments
        if tuple(s["segment_pool_id"]) != (0, 0)
    )
    sizes = {n for d in {s["device"] for s in segments} for n in compat.workspace_sizes(d)}

    def holder_of(block: AllocatorBlock) -> tuple[Category, str]:
        held = holders.of(block)
        if held is not None:
            return held.category, held.what
        if block.requested in sizes:
            return Category.WORKSPACE, WORKSPACE
        return Category.UNKNOWN, IN_POOL if has(private, block.address) else NOBODY

    return holder_of


def unwatched_account(
    device: int,
    segments: list[dict[str, Any]],
    settings: dict[str, Any],
    look: KnownMemory,
    holder_of: HolderOf,
) -> DeviceAccount:
    """The account of a device that nobody follows, now, with all segments that it has;
    ``holder_of`` says whose a block is that ``look`` does not know."""
    history = AllocatorHistory(settings)
    history.take_over(segments)
    marks = [
        Mark(Phase.FORWARD, 0),
        Mark(Phase.FORWARD, 0, look.gradients | look.categories, written_often=look.written_often),
    ]
    history.feed((), marks)
    peak = history.now()
    account = named(device)
    account.reserved = peak.reserved
    stats = torch.cuda.memory_stats(device)
    account.most_allocated = most(stats, "allocated")
    account.most_requested = most(stats, "requested")
    explain(account, peak, marks, now=True, holder_of=holder_of)
    account.rows = [replace(r, detail="") for r in account.rows]
    return account

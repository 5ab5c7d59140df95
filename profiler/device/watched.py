"""What is made of a followed history when somebody asks: accounts of devices, what grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memprof.profiler.model import DeviceAccount, Growth, Purpose

from . import _torch_compat as compat
from .account import Explained, failed_requests
from .growth import growth_of, steps_of
from .holders import Holders
from .marks import Mark
from .replay import Block, Replay
from .totals import named, peaks


def account_of(
    device: int, replay: Replay, explained: Explained, reserved: int, steps: int, lost: int
) -> DeviceAccount:
    """The account of one device at an instant, without the allocator's own counters.

    Args:
        device: its number.
        replay: of it.
        explained: the instant.
        reserved: bytes at it.
        steps: optimizer steps so far.
        lost: how often the history was full before it was taken.
    """
    account = named(device, steps)
    account.reserved = reserved
    explained.put_into(account)
    account.failed = failed_requests(replay)
    if replay.strange:
        account.notes.append(
            f"{replay.strange:,} of {replay.events:,} events of the allocator's history "
            "contradict the others, as they do where it was begun anew by somebody else"
        )
    if replay.corrected:
        account.notes.append(
            f"{replay.corrected:,} times the allocator had other blocks than followed from its "
            "history, as where several threads allocate at once: sizes above may be off"
        )
    if lost:
        account.notes.append(
            f"the allocator's history was full {lost:,} times: the live memory may be "
            "that of a lower peak"
        )
    return account


def most_of(
    replay: Replay, stats: dict[str, Any], peaks_before: tuple[int, int]
) -> tuple[int, int]:
    """The most bytes that were reserved, and allocated, since somebody watches.

    A script may set the counters back (``reset_peak_memory_stats``), the history has no such end.
    And what they had before the watch began they may have from an earlier peak.

    Args:
        replay: of the device.
        stats: ``torch.cuda.memory_stats`` of it.
        peaks_before: the same two by the counters, when the watch began.
    """
    reserved, allocated = (
        max(followed, counted if counted > before else 0)
        for followed, counted, before in zip(
            (replay.peak.reserved, replay.most_allocated), peaks(stats), peaks_before, strict=True
        )
    )
    return reserved, allocated


def workspaces_of(device: int, replay: Replay) -> set[int]:
    """Addresses of what cuBLAS works in: of one of its sizes, there now, and in no tensor."""
    sizes = compat.workspace_sizes(device)
    found = [b for b in replay.live if b.freed_after is None and b.requested in sizes]
    if not found:
        return set()
    holders = Holders()
    return {b.address for b in found if holders.of(b) is None}


def growth_of_all(replays: Mapping[int, Replay], marks: Sequence[Mark]) -> list[Growth]:
    """What is held across steps and grows, on all devices, most a step first.

    Args:
        replays: by device.
        marks: of the run; at the last one it is known what modules and optimizers have.
    """
    last = marks[-1].known
    addresses = sorted(last)

    def purpose(block: Block) -> Purpose | None:
        address = block.first_of(addresses)
        return None if address is None else last[address]

    found = []
    for device, replay in replays.items():
        steps = steps_of(marks, replay.events)
        found += growth_of(f"cuda:{device}", replay.live, steps, purpose, replay.gone)
    return sorted(found, key=lambda g: -g.a_step)

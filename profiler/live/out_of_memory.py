"""Allocations that failed for want of memory, from everything that a profile knows, as data.

A program that catches the error and goes on (a smaller batch, a fallback) leaves no trace of it but
here: in the account of that moment, in memprof's ledger where a warm-up, a recording or a call of
ours failed, in the tracker's snapshots, and in how the tracked process ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.profiler.model import Profile, RunState, SnapshotKind, SourceFrame

_SAYS_SO = re.compile(
    r"out ?of ?memory|can't allocate memory|cannot allocate memory|not enough memory|bad_alloc|"
    r"\bMemoryError\b",
    re.IGNORECASE,
)
"""Messages of out-of-memory errors of torch (devices, CPU), the system, C++ and Python."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """An allocation that failed, or ``count`` alike; what is not known is None.

    Attributes:
        source: the part of the profile that has it: ``allocator``, ``ledger`` or ``tracker``.
        what: what failed, in words: an operator, a graph and what was done with it.
        text: the error, "" if it is not known.
        time_ns: ``time.time_ns()`` of the first.
        live: known live bytes of ``device`` then.
        module, frame: the module whose call it was in, and the line of user code.
    """

    source: str
    what: str
    text: str = ""
    count: int = 1
    time_ns: int | None = None
    device: str | None = None
    live: int | None = None
    module: str | None = None
    frame: SourceFrame | None = None


def out_of_memory(profile: Profile) -> list[OutOfMemory]:
    """Failed allocations in a profile, the allocator's first, each source in order of time."""
    return [found for source in _SOURCES for found in source(profile)]


def times_out_of_memory(profile: Profile) -> int:
    """Lower bound on the number of failed allocations: the highest count of any one source, since
    several sources can know of the same failure."""
    return max(sum(found.count for found in source(profile)) for source in _SOURCES)


def _of_accounts(profile: Profile) -> Iterator[OutOfMemory]:
    for account in profile.accounts:
        f = account.failure
        if f is not None:
            yield OutOfMemory(
                "allocator",
                f.nodes or f.operation or f.modules or f"thread {f.thread}",
                count=f.count,
                time_ns=f.time_ns,
                device=account.device,
                live=account.live,
                module=f.modules or None,
                frame=f.frame or f.called_from,
            )


def _of_ledger(profile: Profile) -> Iterator[OutOfMemory]:
    labels = {g.id: g.label for g in profile.graphs}
    for e in profile.ledger:
        if _SAYS_SO.search(e.reason):
            of = labels.get(e.graph, "") if e.graph is not None else ""
            of = of or (e.tree.function if e.tree else "")
            yield OutOfMemory(
                "ledger",
                f"{e.kind.value.replace('_', ' ')} of {of}" if of else e.kind.value,
                e.reason,
                e.count,
                e.time_ns,
                e.tree.device if e.tree else None,
            )


def _of_snapshots(profile: Profile) -> Iterator[OutOfMemory]:
    if profile.tracker is None:
        return
    origin = profile.tracker.metadata.perf_origin_ns
    for s in profile.tracker.snapshots:
        if s.kind is SnapshotKind.OUT_OF_MEMORY:
            device = s.name.partition(": ")[0]
            memory = s.devices.get(device)
            yield OutOfMemory(
                "tracker",
                s.operations[-1] if s.operations else "outside of operations",
                s.name,
                time_ns=origin + s.time_ns if origin else None,
                device=device,
                live=memory.allocated_bytes if memory is not None else None,
            )


def _of_the_end(profile: Profile) -> Iterator[OutOfMemory]:
    if profile.tracker is None:
        return
    about = profile.tracker.metadata
    if about.state is RunState.EXCEPTION and _SAYS_SO.search(about.reason):
        end = about.perf_origin_ns + about.end_ns if about.perf_origin_ns else None
        yield OutOfMemory("tracker", "the end of the process", about.reason, time_ns=end)


_SOURCES = (_of_accounts, _of_ledger, _of_snapshots, _of_the_end)

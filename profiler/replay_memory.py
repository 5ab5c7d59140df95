"""Memory that replays run in: where it lies, and who had which piece of it when.

``torch.profiler`` sees what torch's allocators hand out. CUDA graphs replay into a pool that
was filled once, compiled CPU code runs in an arena that is not torch's. Whoever owns such memory
registers here as a source, so that a data-flow profile can tell it from memory that was
there before the trace (docs/dataflow.md, "Replayed calls").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SCRATCH = "scratch"
"""Label of a block for what lives and dies in a call, one call after the other."""

log = logging.getLogger("memprof")


@dataclass(frozen=True, slots=True)
class Lease:
    """A block that left a call as a tensor of its own, ``<graph label>: <buffer>``, or one for
    scratch memory, ``SCRATCH``; times are ``time.time_ns()``, None while somebody holds it."""

    label: str
    nbytes: int
    address: int
    born_ns: int
    died_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ReplayMemory:
    """The memory of one pool or arena: bytes that it has from the system, (first address, address
    after the last) of its segments, and leases, the latest last; those that ended long ago may be
    missing."""

    device: str
    reserved: int
    ranges: Sequence[tuple[int, int]]
    leases: Sequence[Lease] = ()


Source = Callable[[], Sequence[ReplayMemory]]

_sources: list[Source] = []


def register(source: Source) -> None:
    """Ask ``source`` too when the memory of replays is wanted."""
    _sources.append(source)


def replay_memory() -> list[ReplayMemory]:
    """All memory of replays in this process now."""
    found: list[ReplayMemory] = []
    for source in list(_sources):
        try:
            found.extend(source())
        except Exception:
            log.warning("memprof could not ask for the memory of replays", exc_info=True)
    return found

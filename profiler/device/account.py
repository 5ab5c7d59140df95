"""The peak of a ``Replay``, each block with a purpose, added up to what the device says.

Note [How a purpose is decided]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Marks* divide the history: one where a backward begins and ends, and where an optimizer's step
does (``watch.py``). What lies between the end of one and the next is the *forward*. At some marks
it is known which storages are parameters, gradients and optimizer state. Then, in this order:

1. a block that held one of those at any mark of its life is one;
2. a block that goes when torch is told to give back cuBLAS's workspaces is one;
3. what FSDP asked for is a gathered parameter or a reduced gradient, what DDP asked for before a
   module ran a bucket of gradients;
4. asked for in an optimizer's step: a temporary if it went within the step, else its state;
5. asked for in a backward: a temporary if it went within it, but an activation if checkpointing
   asked for it again; else a gradient;
6. asked for in a forward: an activation if it went during a later backward, or would have had the
   program not been cut off; a temporary if it went before one began; what outlives the backward is
   an output where modules ran when it was asked for, an input where none did.

Without any backward there are no such spans: what modules asked for is a temporary if it went, and
state if it is there at the end of the run; anything else is an input.

Of what was there before the history began nothing but rule 1 can be known: the rest of it is
*unknown*, from before the session.

A category of compiled code (``compile_backend/roles/categories.py``) is known from its graph; this
one is known for all code, compiled or not, and by whatever backend.
"""

from __future__ import annotations

import bisect
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from memprof.profiler.model import (
    BEFORE,
    AccountRow,
    FailedRequest,
    PoolShare,
    Purpose,
    SourceFrame,
)

from .replay import Block, Peak, Replay
from .where import Where, where


class Phase(str, Enum):
    """What runs from a mark to the next."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(slots=True)
class Mark:
    """An instant between two events of the allocator's history.

    Attributes:
        phase: what runs from here on.
        step: optimizer steps that have ended.
        known: purposes of storages, by the address of their first byte, as far as looked for.
    """

    phase: Phase
    step: int
    known: dict[int, Purpose] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explained:
    """A peak's bytes by what they are for; see ``DeviceAccount`` for the fields."""

    rows: list[AccountRow]
    rounding: int
    awaiting: int
    pools: list[PoolShare]
    step: int
    phase: str


Otherwise = Callable[[Block], tuple[Purpose, str] | None]
"""A block's purpose and who holds it, where the history does not tell."""

Decide = Callable[[Block], AccountRow]
"""The row that a block belongs to, as one of no bytes and no blocks."""


def explain(
    peak: Peak,
    marks: Sequence[Mark],
    last: int | None = None,
    cut_off: bool = False,
    *,
    now: bool = False,
    otherwise: Otherwise | None = None,
) -> Explained:
    """Say of every byte of a peak what it is for.

    Args:
        peak: of a ``Replay`` that has followed the run to its end.
        marks: all of the run; the first one is its beginning.
        last: number of the mark after which nothing but cuBLAS's workspaces was given back; None
            if nobody did that.
        cut_off: whether the program ended in the middle, so that a backward would have come.
        now: whether the peak is the present instant, in the midst of what runs since the last mark.
        otherwise: asked for blocks of which the history does not tell the purpose.
    """
    decide = _Decider(marks, last, cut_off, now)

    def row_of(block: Block) -> AccountRow:
        at = where(block.frames)
        purpose, detail = decide(block, at)
        holder = ""
        if purpose is Purpose.UNKNOWN and otherwise is not None:
            purpose, holder = otherwise(block) or (purpose, "")
        compiled = at.generated is not None
        modules = " > ".join(at.modules)
        line = source_of(at.line)
        return AccountRow(purpose, 0, 0, modules, line, at.nodes, compiled, detail, holder)

    mark = marks[-1 if now else peak.mark]
    trained = any(m.phase is not Phase.FORWARD for m in marks)
    return replace(
        add_up(peak, row_of),
        step=mark.step + 1 if trained else 0,
        phase=mark.phase.value if trained else "",
    )


def add_up(peak: Peak, row_of: Decide) -> Explained:
    """An instant's bytes by rows, with what is no block that somebody asked for; of no phase."""
    grouped: dict[AccountRow, list[int]] = {}
    rounding = awaiting = 0
    for block in peak.blocks:
        if block.address in peak.awaiting:
            awaiting += block.size
            continue
        rounding += block.size - block.requested
        of_alike = grouped.setdefault(row_of(block), [0, 0])
        of_alike[0] += block.requested
        of_alike[1] += 1
    rows = [replace(row, nbytes=n, count=count) for row, (n, count) in grouped.items()]
    rows.sort(key=lambda r: (-r.nbytes, r.purpose.value))
    return Explained(rows, rounding, awaiting, _pools(peak), 0, "")


def failed_requests(replay: Replay) -> list[FailedRequest]:
    """Requests that could not be served, those of one place together, in order of the first."""
    found: dict[tuple[object, ...], FailedRequest] = {}
    for nbytes, frames in replay.out_of_memory:
        at = where(frames)
        key = (nbytes, at.line, at.modules)
        count = found[key].count + 1 if key in found else 1
        found[key] = FailedRequest(nbytes, " > ".join(at.modules), source_of(at.line), count)
    return list(found.values())


def source_of(line: SourceFrame | None) -> SourceFrame | None:
    """A line with the text of it, where it can be read."""
    if line is None:
        return None
    return replace(line, code=linecache.getline(line.file, line.line).strip())


class _Decider:
    """Note [How a purpose is decided]."""

    def __init__(self, marks: Sequence[Mark], last: int | None, cut_off: bool, now: bool) -> None:
        self._marks = marks
        self._last = last
        self._cut_off = cut_off
        self._now = now
        self._known = [(i, m.known) for i, m in enumerate(marks) if m.known]
        self._addresses = {i: sorted(known) for i, known in self._known}
        self._backwards = [i for i, m in enumerate(marks) if m.phase is Phase.BACKWARD]
        ended = len(self._backwards)
        if now:  # The backward that runs has not let go of all that it will.
            while ended and self._same_span(self._backwards[ended - 1], len(marks) - 1):
                ended -= 1
        self._ended = ended

    def __call__(self, block: Block, at: Where) -> tuple[Purpose, str]:
        known = self._of_storage(block)
        if block.event == 0:
            return known or Purpose.UNKNOWN, BEFORE
        if known is not None:
            return known, ""
        if self._last is not None and block.freed_after == self._last:
            return Purpose.WORKSPACE, "cuBLAS"
        phase = self._marks[block.mark].phase
        if "torch/distributed/fsdp" in at.inside:
            if phase is Phase.BACKWARD and self._reduces(block):
                return Purpose.GRADIENT, "reduced by FSDP"
            return Purpose.PARAMETER, "all-gathered by FSDP"
        if "torch/nn/parallel" in at.inside and phase is Phase.FORWARD and not at.modules:
            return Purpose.GRADIENT, "DDP's buckets"
        if not self._backwards:
            return self._without_backward(block, at)
        end = block.freed_after
        if end is None and self._now and phase is not Phase.FORWARD:
            end = len(self._marks) - 1  # What is to stay of this span is known already.
        within = end is not None and self._same_span(block.mark, end)
        if phase is Phase.OPTIMIZER:
            return (Purpose.TEMPORARY if within else Purpose.OPTIMIZER_STATE), ""
        if phase is Phase.BACKWARD:
            if not within:  # Gradients that are there now are known as such.
                return (Purpose.UNKNOWN if self._now else Purpose.GRADIENT), ""
            if "torch/utils/checkpoint" in at.inside:
                return Purpose.ACTIVATION, "recomputed"
            return Purpose.TEMPORARY, ""
        return self._of_forward(block, at, end, within)

    def _of_forward(
        self, block: Block, at: Where, end: int | None, within: bool
    ) -> tuple[Purpose, str]:
        if within:
            return Purpose.TEMPORARY, ""
        later = bisect.bisect_right(self._backwards, block.mark)
        if later >= self._ended and self._cut_off and at.modules:
            return Purpose.ACTIVATION, ""
        if end is not None and self._marks[end].phase is Phase.BACKWARD:
            return Purpose.ACTIVATION, ""
        return (Purpose.OUTPUT if at.modules else Purpose.INPUT), ""

    def _without_backward(self, block: Block, at: Where) -> tuple[Purpose, str]:
        if not at.modules:
            return Purpose.INPUT, ""
        return (Purpose.STATE if block.freed_after is None else Purpose.TEMPORARY), ""

    def _same_span(self, begin: int, end: int) -> bool:
        """Whether no phase began between two marks, the first's own aside."""
        phase = self._marks[begin].phase
        return all(m.phase is phase for m in self._marks[begin : end + 1])

    def _of_storage(self, block: Block) -> Purpose | None:
        for i, known in self._known:
            if block.mark >= i:
                continue
            if block.freed_after is not None and block.freed_after < i:
                break
            addresses = self._addresses[i]
            at = bisect.bisect_left(addresses, block.address)
            if at < len(addresses) and addresses[at] < block.address + block.size:
                return known[addresses[at]]
        return None

    @staticmethod
    def _reduces(block: Block) -> bool:
        return any("reduce" in f.function for f in block.frames)


def _pools(peak: Peak) -> list[PoolShare]:
    """Segments by pool, with what of them was in no block."""
    # By address: a segment that grew or was cut since then has other blocks now.
    starts = sorted(s.address for s, _ in peak.segments)
    used: Mapping[int, list[tuple[int, int]]] = {start: [] for start in starts}
    for block in peak.blocks:
        at = bisect.bisect_right(starts, block.address) - 1
        if at >= 0:
            used[starts[at]].append((block.address, block.size))
    pools: dict[str, list[int]] = {}
    for segment, size in peak.segments:
        of_pool = pools.setdefault(name_of_pool(segment.pool), [0, 0, 0, 0])
        of_pool[0] += size
        of_pool[2] += 1
        at = segment.address
        for address, nbytes in [*sorted(used[segment.address]), (segment.address + size, 0)]:
            of_pool[1] += max(0, address - at)
            of_pool[3] = max(of_pool[3], address - at)
            at = max(at, address + nbytes)
    return [
        PoolShare(name, reserved, free, segments, largest)
        for name, (reserved, free, segments, largest) in sorted(
            pools.items(), key=lambda item: -item[1][0]
        )
    ]


def name_of_pool(pool: tuple[int, int] | None) -> str:
    """The name of a pool, as ``PoolShare`` has it."""
    if pool is None:
        return "gone"
    return "general" if pool == (0, 0) else f"private {pool[0]},{pool[1]}"

"""The peak of a ``AllocatorHistory``, each block with a category, added up to what the device says.

Note [How a block gets its category]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Marks* divide the history: one where a backward begins and ends, and where an optimizer's step
does (``history_follower.py``). What lies between the end of one and the next is the *forward*. At
some marks it is known which storages are parameters, gradients and optimizer state, which
``AllocatorHistory`` notes in the blocks that are there. Then, in this order:

1. a block that held one of those at any mark of its life is one, and persistent state if it was
   that at any (Note [What counts as persistent state] in ``known.py``);
2. a block that goes when torch is told to give back cuBLAS's workspaces is one; in somebody's
   program, which keeps them, one of their size that is there at the end and in no tensor; from
   torch 2.15 on one of that size that was given back before the allocator did anything else;
3. what FSDP and DDP asked for, by the innermost of their functions; what transformers' caches did,
   by their file, is persistent state;
4. asked for in an optimizer's step: a temporary if it went within the step, else its state;
5. asked for in a backward: an activation if a checkpoint or the call of a module asked for it, or
   an FX node of the forward, since that is what is computed again; else a temporary if it went
   within the backward, an activation if it went within a later one, and a gradient;
6. asked for in a forward: an activation if it went during a later backward, or would have had the
   program not been cut off; a temporary if it went before one began; what outlives the backward is
   an output where modules ran when it was asked for, or compiled code did, an input where neither.

Without any backward what modules asked for is a temporary if it went, and state if it is there at
the end; of compiled code that runs several modules at once that is an output. What nobody's module
asked for is state where a module has it as an attribute (``owners.py``), as engines that serve give
each layer its cache of keys and values. Anything else is an input. But where a program that trains
was cut off before its first backward, rule 6 holds. Of what was there before the history began
nothing but rule 1 can be known.

Note [What a failure cuts off]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A request that fails, or a backward that raises, ends what runs, and most of what is there goes: not
since it was of no more use. So what goes before anything else is asked for
(``AllocatorBlock.cut``) is what it was at the failure, and such a backward has not ended: the
report of that moment and the account of the run, which may go on for long, say the same. A program
that ends by an exception is cut off at its end. One that has an optimizer, and no backward yet,
would have had one.

A category of compiled code (``compile_backend/stages/describe``) is known from its graph; this one
for all code.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memprof.profiler.model import (
    BEFORE,
    RECOMPUTED,
    Category,
    DeviceAccount,
    FailedRequest,
    Held,
    PoolShare,
    SourceFrame,
)

from .history import AllocatorBlock, AllocatorHistory, AllocatorInstant, frames_of
from .marks import Mark, Phase, line_that_waits
from .where import Where, is_internal, source_of, where

HolderOf = Callable[[AllocatorBlock], tuple[Category, str]]
"""A block's category and who holds it, where the history does not tell."""


def explain(
    account: DeviceAccount,
    peak: AllocatorInstant,
    marks: Sequence[Mark],
    *,
    cut_off: bool = False,
    now: bool = False,
    holder_of: HolderOf | None = None,
    is_workspace: Callable[[AllocatorBlock], bool] = lambda block: False,
    transient_workspaces: Collection[int] = (),
) -> None:
    """Say in an account, which says how much was reserved, of every byte of a peak what it is for.

    Args:
        account, peak, marks: of a ``AllocatorHistory`` that has followed the run to its end.
        cut_off: whether a program that trains ended in the middle, so that a backward would have
            come.
        now: whether the peak is the present instant, in the midst of what runs since the last mark.
        holder_of: asked for blocks of which the history does not tell the category.
        is_workspace: whether a block that is there at the end of the run is cuBLAS's workspace.
        transient_workspaces: bytes of workspaces that go with the operation.
    """
    decide = _CategoryRules(marks, cut_off, now, is_workspace, transient_workspaces)

    def row_of(block: AllocatorBlock) -> Held:
        frames = block.frames
        at = where(frames)
        category, detail = decide(block, at, of_distributed(frames))
        holder = ""
        if holder_of is not None and category is Category.UNKNOWN:
            category, holder = holder_of(block)
            if category is Category.TENSOR and marks[block.mark].phase is Phase.BACKWARD:
                category = Category.GRADIENT
        elif (
            holder_of is not None and block.known_category is None and block.written_often
        ):  # and nothing else
            _, holder = holder_of(block)
        waiting = line_that_waits(marks, block.mark) if at.line is None else None
        return Held(
            category,
            nbytes=0,
            count=0,
            modules=at.module_path or block.owner,
            frame=source_of(at.line or waiting),
            nodes=at.nodes,
            compiled=at.generated is not None,
            detail=detail,
            holder=holder,
            waits=waiting is not None,
            library=at.library,
        )

    add_up(account, peak, row_of)
    if any(m.phase is not Phase.FORWARD for m in marks):
        mark = marks[-1 if now else peak.mark]
        account.step, account.phase = mark.step + 1, mark.phase.value


def add_up(
    account: DeviceAccount, peak: AllocatorInstant, row_of: Callable[[AllocatorBlock], Held]
) -> None:
    """Add up the blocks of a peak in an account; ``row_of`` gives each a row without bytes.

    A block counts where there is a place for it: inside of a segment, behind the one before. A
    history that contradicts itself has others, whose bytes are not explained.
    """
    account.pools, blocks = _pools(peak)
    live = [b for b in blocks if b.address not in peak.awaiting]
    account.allocated = sum(b.size for b in live)
    account.rounding = account.allocated - sum(b.requested for b in live)
    account.awaiting = sum(b.size for b in blocks) - account.allocated
    account.rows = rows_of(live, row_of)
    account.unexplained = account.reserved - account.explained


def add_history_notes(account: DeviceAccount, history: AllocatorHistory, lost: int) -> None:
    """Put into an account which requests failed, and what may be wrong with the history, which was
    ``lost`` so often because it was full."""
    account.failed = _failed_requests(history)
    if history.corrected:
        account.notes.append(
            f"{history.corrected:,} times the allocator had other blocks than followed from its "
            "history, as where several threads allocate at once or somebody else has begun it "
            "anew: sizes above may be off"
        )
    if lost:
        account.notes.append(
            f"the allocator's history was full {lost:,} times: the live memory may be "
            "that of a lower peak"
        )


def _asker(raw: Sequence[Mapping[str, Any]]) -> tuple[str, SourceFrame | None]:
    at = where(frames_of(raw))
    return at.module_path, source_of(at.line)


def rows_of(
    blocks: Iterable[AllocatorBlock], row_of: Callable[[AllocatorBlock], Held]
) -> list[Held]:
    """Returns the rows of blocks, most bytes first; ``row_of`` gives each one a row without bytes,
    and blocks with equal rows are counted in one."""
    grouped: dict[Held, list[int]] = {}
    for block in blocks:
        grouped.setdefault(row_of(block), []).append(block.requested)
    rows = [replace(row, nbytes=sum(n), count=len(n)) for row, n in grouped.items()]
    return sorted(rows, key=lambda r: (-r.nbytes, r.category.value, r.fate or ""))


def _failed_requests(history: AllocatorHistory) -> list[FailedRequest]:
    """Requests that could not be served, those of one place together, in order of the first."""
    # Many may fail in one place: its long list of frames is looked at once.
    places = {id(raw): raw for _, raw in history.out_of_memory}
    asked = {place: _asker(raw) for place, raw in places.items()}
    alike = Counter((nbytes, *asked[id(raw)]) for nbytes, raw in history.out_of_memory)
    return [FailedRequest(*request, count) for request, count in alike.items()]


class _CategoryRules:
    """Note [How a block gets its category]; arguments as those of ``explain``."""

    def __init__(
        self,
        marks: Sequence[Mark],
        cut_off: bool,
        now: bool,
        is_workspace: Callable[[AllocatorBlock], bool],
        transient_workspaces: Collection[int],
    ) -> None:
        self._marks = marks
        self._cut_off = cut_off
        self._now = now
        self._trains = cut_off or any(m.phase is Phase.BACKWARD for m in marks)
        self._is_kept_workspace = is_workspace
        self._transient_workspaces = transient_workspaces
        self._ended: set[int] = set()  # Marks in backwards that let go of all that they would.
        ended = not now
        for i in reversed(range(len(marks))):
            if marks[i].phase is not Phase.BACKWARD:
                ended = not marks[i].cut
            elif ended:
                self._ended.add(i)

    def __call__(
        self, block: AllocatorBlock, at: Where, distributed: tuple[Category, str] | None
    ) -> tuple[Category, str]:
        known = block.known_category
        if known is None and self._is_workspace(block):
            return Category.WORKSPACE, "cuBLAS"
        if block.event == 0:
            state = Category.PERSISTENT_STATE if block.written_often else None
            return known or state or Category.UNKNOWN, BEFORE
        if distributed is not None and known in (None, Category.GRADIENT):
            category, detail = distributed
            if known is None:
                return distributed
            if detail == BUCKETS:
                return category, BUCKETS_OF_GRADIENTS
        if known is not None:
            return known, ""
        if at.innermost is not None and _CACHES.search(at.innermost.file):
            return Category.PERSISTENT_STATE, CACHE
        phase = self._marks[block.mark].phase
        if phase is Phase.FORWARD and block.written_often:
            return Category.PERSISTENT_STATE, ""
        if phase is Phase.BACKWARD and at.recomputed:
            return Category.ACTIVATION, RECOMPUTED
        end = None if block.cut else block.freed_after
        if phase is Phase.FORWARD:
            return self._of_forward(block, at, end), ""
        last = len(self._marks) - 1 if self._cut_off else None
        until = block.freed_after if block.freed_after is not None else last
        cut = phase is Phase.BACKWARD and block.mark not in self._ended
        # What is to stay of a span that is cut off is known already.
        if cut or (until is not None and self._same_span(block.mark, until)):
            return Category.TEMPORARY, ""
        if phase is Phase.OPTIMIZER:
            return Category.OPTIMIZER_STATE, ""
        if end is not None and self._marks[end].phase is Phase.BACKWARD:
            return Category.ACTIVATION, ""  # of a gradient that was differentiated
        return (Category.UNKNOWN if self._now else Category.GRADIENT), ""

    def _of_forward(self, block: AllocatorBlock, at: Where, end: int | None) -> Category:
        of_model = bool(at.modules) or at.generated is not None  # which may run several modules
        if not self._trains:
            if end is None and at.modules:
                return Category.PERSISTENT_STATE
            category = Category.TEMPORARY if end is not None else Category.OUTPUT
            kept = Category.PERSISTENT_STATE if block.owner else Category.INPUT
            return category if of_model else kept
        if end is not None and self._same_span(block.mark, end):
            return Category.TEMPORARY
        until = block.freed_after if block.freed_after is not None else len(self._marks)
        would_go = of_model and end is None and (self._cut_off or block.cut)
        would_go = would_go and self._ended.isdisjoint(range(block.mark, until + 1))
        if would_go or (end is not None and self._marks[end].phase is Phase.BACKWARD):
            return Category.CHECKPOINTED_INPUT if block.checkpointed else Category.ACTIVATION
        return Category.OUTPUT if of_model else Category.INPUT

    def _same_span(self, begin: int, end: int) -> bool:
        """Tells whether no phase began between two marks, the first's own aside."""
        phase = self._marks[begin].phase
        return all(self._marks[i].phase is phase for i in range(begin, end + 1))

    def _is_workspace(self, block: AllocatorBlock) -> bool:
        if block.freed_after is None:
            return self._is_kept_workspace(block)
        # Three events: it was handed out, given back, and could be handed out again.
        at_once = block.ended is not None and block.ended - block.event == 2
        return self._marks[block.freed_after].clears or (
            at_once and block.requested in self._transient_workspaces
        )


CACHE = "cache of transformers"
_CACHES = re.compile(r"[/\\]transformers[/\\]cache_utils\.py$")

BUCKETS = "DDP's buckets"
BUCKETS_OF_GRADIENTS = "DDP's buckets: gradients are views of them"


def of_distributed(frames: Sequence[SourceFrame]) -> tuple[Category, str] | None:
    """Category and holder of what FSDP or DDP asked for, by frames, innermost first; else None."""
    buffer = Category.COMMUNICATION_BUFFER
    for frame in frames:
        path = frame.file.replace("\\", "/")
        if "torch/nn/modules/" in path or not is_internal(frame.file):
            return None  # What a module asked for that FSDP or DDP had called.
        reduces = "reduce" in frame.function
        if path.endswith("torch/nn/parallel/distributed.py"):
            return buffer, "DDP's broadcast" if "sync" in frame.function else BUCKETS
        if "torch/distributed/fsdp/_fully_shard/" in path:
            if path.endswith("/_fsdp_collectives.py") and frame.function == "allocate":
                continue  # For whoever called that.
            if reduces:
                return buffer, "reduce-scatter of FSDP"
            if path.endswith("/_fsdp_collectives.py"):
                return buffer, "all-gather of FSDP"
            return Category.PARAMETER, "all-gathered by FSDP"
        if "torch/distributed/fsdp/" in path:
            if reduces:
                return buffer, "reduce-scatter of FSDP1"
            return buffer, "parameters gathered by FSDP1"
    return None


def _pools(peak: AllocatorInstant) -> tuple[list[PoolShare], list[AllocatorBlock]]:
    """Segments by pool, with what of them was in no block; and the blocks that lie in them."""
    # By address: a segment that grew or was cut since then has other blocks now.
    blocks = sorted(peak.blocks, key=lambda b: -b.address)
    inside: list[AllocatorBlock] = []
    pools: dict[str, list[int]] = {}
    for segment, size in sorted(peak.segments, key=lambda s: s[0].address):
        of_pool = pools.setdefault(name_of_pool(segment.pool), [0, 0, 0, 0, 0])
        at, end = segment.address, segment.address + size
        holes = []
        while blocks and blocks[-1].address < end:
            block = blocks.pop()
            if at <= block.address and block.address + block.size <= end:
                holes.append(block.address - at)
                at = block.address + block.size
                inside.append(block)
        holes.append(end - at)
        of_pool[0] += size
        of_pool[1] += sum(holes)
        of_pool[2] += 1
        of_pool[3] = max(of_pool[3], *holes)
        of_pool[4] += any(holes)
    found = [PoolShare(name, *of_pool) for name, of_pool in pools.items()]
    return sorted(found, key=lambda p: -p.reserved), inside


def name_of_pool(pool: tuple[int, int] | None) -> str:
    """The name of a pool, as ``PoolShare`` has it."""
    if pool is None:
        return "gone"
    return "general" if pool == (0, 0) else f"private {pool[0]},{pool[1]}"

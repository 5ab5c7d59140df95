"""Memory that an ``AllocatorSession`` has seen grow: blocks that stay step after step, and their
holders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memprof.profiler.live.growth import LEAST, Gone, Rate, rate_of
from memprof.profiler.model import Category, Growth, GrowthSource, Held, SourceFrame

from .history import AllocatorBlock, AllocatorHistory
from .holders import HeldStorage, Holders, most_common_chain
from .marks import Mark, Phase, line_that_waits
from .referrers import CIRCLE, NODE
from .where import Where, source_of, user_lines, where

SAMPLES = 6
"""Blocks of a line whose holders are looked up."""

WINDOWS = 32
"""Spans of equally many allocations that stand for steps in a run without any."""

_LASTS = frozenset({Category.GRADIENT, Category.OPTIMIZER_STATE, Category.PERSISTENT_STATE})
"""Categories of memory that a program may come to at any step and keep, as where an expert has its
first token. Not parameters: copies of a model that are kept are a leak."""


@dataclass(slots=True)
class Steps:
    """Steps of a run: the number of the step in which a block was made, from 1, and of that in
    which it was freed; how many have ended, their name, and whether they are only events of the
    allocator."""

    of: Callable[[AllocatorBlock], int]
    end: Callable[[AllocatorBlock], int]
    count: int
    name: str
    are_events: bool = False


@dataclass(slots=True)
class _Line:
    """Blocks that the same text asked for: those that are there, and those that lived long."""

    frame: SourceFrame | None
    at: Where
    blocks: list[AllocatorBlock] = field(default_factory=list)
    holder: str = ""
    root: HeldStorage | None = None

    @property
    def live(self) -> list[AllocatorBlock]:
        return [b for b in self.blocks if b.freed_after is None]


def steps_of(marks: Sequence[Mark], events: int) -> Steps:
    """Steps to count: optimizer steps, else backwards, else spans of the allocator's events."""

    def by(count: Callable[[Mark], int], name: str) -> Steps | None:
        if count(marks[-1]) < LEAST:
            return None
        return Steps(
            lambda b: count(marks[b.mark]) + 1,
            lambda b: count(marks[b.freed_after or 0]) + 1,
            count(marks[-1]),
            name,
        )

    span = max(1, events // WINDOWS)
    return (
        by(lambda m: m.step, "optimizer step")
        # What a backward makes is of the step that its forward has begun.
        or by(lambda m: m.backwards - (m.phase is Phase.BACKWARD), "backward")
        or Steps(
            lambda b: b.event // span + 1,
            lambda b: (b.ended or 0) // span + 1,
            events // span,
            f"{span:,} allocator events",
            True,
        )
    )


def growth_of(
    device: int, history: AllocatorHistory, marks: Sequence[Mark], known: Mapping[int, Category]
) -> Iterator[Growth]:
    """Yields what is held on a device across steps and grows; ``known`` is what modules and
    optimizers have now, by address."""
    steps = steps_of(marks, history.events)
    addresses = sorted(known)
    lines: dict[tuple[object, ...], _Line] = {}

    def line(block: AllocatorBlock) -> SourceFrame | None:
        return where(block.frames).line or line_that_waits(marks, block.mark)

    def lasts(block: AllocatorBlock) -> bool:
        address = block.first_of(addresses)
        return address is not None and known[address] in _LASTS

    live = [b for b in history.live if b.event and b.freed_after is None and not lasts(b)]
    for block in (*live, *history.long_lived):
        at, frame = where(block.frames), line(block)
        key = (frame, at.modules, at.nodes)
        lines.setdefault(key, _Line(frame, at)).blocks.append(block)
    growing = [
        apart
        for one in lines.values()
        if _rate([one], steps) is not None
        for apart in _by_callers(one, steps)
    ]
    if not growing:
        return
    holders = Holders()
    _ask(growing, holders)
    for together in _by_holder(growing, steps).values():
        rate = _rate(together, steps)
        if rate is not None:
            root = _block_of_root(together, history.live, holders)
            frame = source_of(line(root)) if root is not None else None
            yield _growth(f"cuda:{device}", together, rate, steps, frame)


def _by_callers(line: _Line, steps: Steps) -> list[_Line]:
    """A line, once for each way to it on which it grows, as a function that several call may leak
    for one of them or for several; whole where no way grows alone."""
    ways: dict[tuple[SourceFrame, ...], _Line] = {}
    for block in line.blocks:
        way = tuple(user_lines(block.frames))
        ways.setdefault(way, _Line(line.frame, line.at)).blocks.append(block)
    return [way for way in ways.values() if _rate([way], steps) is not None] or [line]


def _rate(lines: Sequence[_Line], steps: Steps) -> Rate | None:
    held: Counter[int] = Counter()
    gone = []
    for block in (b for line in lines for b in line.blocks):
        if block.freed_after is None:
            held[steps.of(block)] += block.requested
        else:
            gone.append(Gone(steps.of(block), steps.end(block), block.requested))
    return rate_of(held, steps.count, gone)


def _ask(lines: Sequence[_Line], holders: Holders) -> None:
    """Find the holders of some blocks of each line."""
    samples: list[tuple[_Line, HeldStorage]] = []
    for line in lines:
        blocks = line.live
        count = min(SAMPLES, len(blocks))
        asked = (holders.of(blocks[i * len(blocks) // count]) for i in range(count))
        samples += ((line, held) for held in asked if held is not None)
    holders.name([held for _, held in samples])
    for line in lines:
        of_line = [held for other, held in samples if other is line]
        line.holder = most_common_chain(held.chain or held.root_chain for held in of_line)
        line.root = next((h for h in of_line if not h.chain and h.root is not None), None)


def _by_holder(lines: Sequence[_Line], steps: Steps) -> dict[object, list[_Line]]:
    """Lines grouped by the holder of their blocks; gradients that have graphs, which lead to one
    another, are one group. Blocks without a named holder are grouped by their steps."""
    found: dict[object, list[_Line]] = {}
    for line in lines:
        outermost = line.holder.rpartition(", held by ")[2]
        name, comma, root = outermost.partition(", ")
        key: object = _INDICES.sub("[...]", name) + comma + root
        if name.endswith(".grad") and line.root is not None:
            key = ".grad"
        elif root.startswith((NODE, CIRCLE)):
            key = root
        elif not line.holder:
            key = frozenset(map(steps.of, line.live))
        found.setdefault(key, []).append(line)
    return found


_INDICES = re.compile(r"(\[\.\.\.\])+$")
"""Trailing indices, one deeper or less for a cache's keys than for what it has under them."""


def _growth(
    device: str, lines: list[_Line], rate: Rate, steps: Steps, frame: SourceFrame | None
) -> Growth:
    parts = [
        Held(
            Category.ALLOCATED,
            nbytes=sum(b.requested for b in line.live),
            count=len(line.live),
            modules=line.at.module_path,
            frame=source_of(line.frame),
            nodes=line.at.nodes,
        )
        for line in lines
    ]
    parts.sort(key=lambda p: -p.nbytes)
    nbytes = sum(p.nbytes for p in parts)
    names = dict.fromkeys(line.holder.partition(", ")[0] for line in lines)
    holder = lines[0].holder
    _, comma, root = holder.partition(", ")
    if root.startswith((NODE, CIRCLE)):
        holder = " and ".join(names) + comma + root
    found = Growth(
        GrowthSource.ALLOCATOR,
        device=device,
        nbytes=nbytes,
        a_step=rate.a_step,
        step=steps.name,
        since=rate.since,
        steps=steps.count,
        holder=holder,
        frame=frame or next((p.frame for p in parts if p.frame is not None), None),
        parts=tuple(parts),
    )
    if not steps.are_events:
        return found
    # Of what nobody counts but the allocator: what has one block of each line.
    times = min(len(line.live) for line in lines)
    what = next(iter(names)).partition(".")[0] if root.startswith(CIRCLE) else "block"
    return replace(found, a_step=nbytes // times, step=what, since=1, steps=times)


def _block_of_root(
    lines: Sequence[_Line], blocks: Iterable[AllocatorBlock], holders: Holders
) -> AllocatorBlock | None:
    """The block of the tensor from which a graph is held; None if no graph is."""
    root = next((line.root for line in lines if line.root is not None), None)
    address = holders.address_of(root.root) if root is not None else None
    if address is None:
        return None
    return next((b for b in blocks if b.address <= address < b.address + b.size), None)

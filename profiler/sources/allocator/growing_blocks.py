"""Memory that an ``AllocatorSession`` has seen grow: blocks that stay step after step, and their
holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from memprof.profiler.live.growth import LEAST, rate_of
from memprof.profiler.model import Category, Growth, GrowthSource, Held, SourceFrame

from .history import AllocatorBlock, AllocatorHistory
from .holders import Holders
from .marks import Mark, Phase, line_that_waits
from .where import Where, source_of, user_lines, where

SAMPLES = 6
"""Blocks of a place whose holders are looked up, at least."""

WINDOWS = 32
"""Spans of equally many allocations that stand for steps in a run without any."""

_LASTS = frozenset({Category.GRADIENT, Category.OPTIMIZER_STATE, Category.PERSISTENT_STATE})
"""Categories of memory that a program may come to at any step and keep, as where an expert has its
first token. Not parameters: copies of a model that are kept are a leak."""


@dataclass(slots=True)
class Steps:
    """Steps of a run: the number of the step in which a block was made, from 1, and of that in
    which it was freed; how many have ended, and their name."""

    of: Callable[[AllocatorBlock], int]
    end: Callable[[AllocatorBlock], int]
    count: int
    name: str


@dataclass(slots=True)
class _CallStack:
    """Blocks that the same call stack asked for: those that are there, and those that lived
    long."""

    frame: SourceFrame | None
    at: Where
    blocks: list[AllocatorBlock] = field(default_factory=list)

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
        )
    )


def growth_of(
    device: int, history: AllocatorHistory, marks: Sequence[Mark], known: Mapping[int, Category]
) -> Iterator[Growth]:
    """Yields what is held on a device across steps and grows: places whose blocks the same variable
    has together, and so those of the same steps where no variable leads to them. ``known`` is what
    modules and optimizers have now, by address."""
    steps = steps_of(marks, history.events)
    addresses = sorted(known)

    def lasts(block: AllocatorBlock) -> bool:
        address = block.first_of(addresses)
        return address is not None and known[address] in _LASTS

    places: dict[tuple[object, ...], _CallStack] = {}
    live = [b for b in history.live if b.event and b.freed_after is None and not lasts(b)]
    for block in (*live, *history.long_lived):
        at = where(block.frames)
        frame = at.line or line_that_waits(marks, block.mark)
        # By all lines on the way: a function that several call may leak for one of them.
        key = (frame, *user_lines(block.frames), at.modules, at.nodes)
        places.setdefault(key, _CallStack(frame, at)).blocks.append(block)
    growing = [p for p in places.values() if _rate([p], steps) is not None]
    if not growing:
        return
    holders = Holders()
    found: dict[object, list[_CallStack]] = {}
    for place in growing:
        there = place.live
        asked = map(holders.of, there[:: max(1, len(there) // SAMPLES)])
        names = Counter(held.variable or held.root for held in asked if held is not None)
        names.pop("", None)
        who: object = names.most_common(1)[0][0] if names else frozenset(map(steps.of, there))
        found.setdefault(who, []).append(place)
    for who, together in found.items():
        rate = _rate(together, steps)
        if rate is not None:
            holder = who if isinstance(who, str) else ""
            yield _growth(f"cuda:{device}", together, rate, steps, holder)


def _rate(places: Sequence[_CallStack], steps: Steps) -> tuple[int, int] | None:
    held: Counter[int] = Counter()
    gone = []
    for block in (b for place in places for b in place.blocks):
        if block.freed_after is None:
            held[steps.of(block)] += block.requested
        else:
            gone.append((steps.of(block), steps.end(block), block.requested))
    return rate_of(held, steps.count, gone)


def _growth(
    device: str, places: Sequence[_CallStack], rate: tuple[int, int], steps: Steps, holder: str
) -> Growth:
    a_step, since = rate
    parts = [
        Held(
            Category.ALLOCATED,
            nbytes=sum(b.requested for b in place.live),
            count=len(place.live),
            modules=place.at.module_path,
            frame=source_of(place.frame),
            nodes=place.at.nodes,
        )
        for place in places
    ]
    parts.sort(key=lambda p: -p.nbytes)
    return Growth(
        GrowthSource.ALLOCATOR,
        device=device,
        nbytes=sum(p.nbytes for p in parts),
        a_step=a_step,
        step=steps.name,
        since=since,
        steps=steps.count,
        holder=holder,
        frame=next((p.frame for p in parts if p.frame is not None), None),
        parts=tuple(parts),
    )

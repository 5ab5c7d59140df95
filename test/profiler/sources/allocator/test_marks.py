"""Marks that go change nothing that is said of the blocks that stay."""

from __future__ import annotations

import bisect
import random
from typing import Any

from memprof.profiler.model import Category, DeviceAccount
from memprof.profiler.sources.allocator.account import explain
from memprof.profiler.sources.allocator.growth import steps_of
from memprof.profiler.sources.allocator.history import AllocatorHistory, drop_unused_marks
from memprof.profiler.sources.allocator.marks import Mark, Phase

KIB = 1 << 10
PAGE = 4 * KIB
PAGES = 256
"""Segments, each of which serves one block at a time."""
FRAME = {"filename": "/home/me/train.py", "line": 1, "name": "<module>"}
BATCH = {"filename": __file__, "line": 1, "name": "<module>"}


class Program:
    """A training whose tensors live for random times, followed as a session follows it."""

    def __init__(self, seed: int, thins: bool, leaks: bool = True) -> None:
        self.random = random.Random(seed)
        self.thins = thins
        self.leaks = leaks
        self.marks = [Mark(Phase.FORWARD, 0)]
        self.replay = AllocatorHistory()
        self.events: list[dict[str, Any]] = [
            {"action": "segment_alloc", "addr": 2 * at, "size": PAGE, "stream": 0}
            for at in range(0, PAGES * PAGE, PAGE)
        ]
        self.asked = self.let_go = 0
        self.free = list(range(0, 2 * PAGES * PAGE, 2 * PAGE))
        self.live: dict[int, int] = {}
        self.most = 0

    def mark(self, phase: Phase, step: int, **said: Any) -> None:
        before, counts = self.marks[-1], {0: (self.asked, self.let_go)}
        begins = phase is Phase.BACKWARD and before.phase is not phase
        said["backwards"] = before.backwards + begins
        self.marks.append(Mark(phase, step, counts=counts, **said))

    def take(self, until: int) -> None:
        """Ask for a block that is let go of at a step."""
        # The lowest first, so that each address serves many in turn.
        address = self.free.pop(0)
        self.live[address] = until
        self.asked += 1
        frames = [self.random.choice((FRAME, BATCH))] if self.random.random() < 0.9 else []
        size = self.random.choice((512, KIB, PAGE))
        self.events.append(
            {"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": frames}
        )

    def drop(self, address: int) -> None:
        del self.live[address]
        bisect.insort(self.free, address)
        self.let_go += 1
        self.events += (
            {"action": action, "addr": address, "size": 0, "stream": 0}
            for action in ("free_requested", "free_completed")
        )

    def some(self, share: float = 0.3) -> list[int]:
        return [a for a in self.live if self.random.random() < share]

    def step(self, number: int) -> None:
        kinds = (Category.PARAMETER, Category.GRADIENT, Category.PERSISTENT_STATE)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER):
            if self.random.random() < 0.1:
                continue
            known = {a: self.random.choice(kinds) for a in self.some(0.1)}
            self.mark(phase, number, categories=known if self.random.random() < 0.3 else {})
            for _ in range(self.random.randrange(6)):
                self.take(number + self.random.choice((0, 0, 0, 0, 1, 5)))
            if self.leaks and self.random.random() < 0.05:
                self.take(1 << 30)
            if self.random.random() < 0.2:
                self.mark(phase, number, checkpointed=frozenset(self.some()))
            if self.random.random() < 0.2:
                self.mark(phase, number)
            if self.random.random() < 0.1:
                self.mark(phase, number, written_often=frozenset(self.some(0.1)))
            going = [a for a, until in self.live.items() if until <= number]
            for address in going:
                if self.random.random() < 0.7:
                    self.drop(address)

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step(number)
            if self.random.random() < 0.2:
                self.drain()
        self.drain()

    def drain(self) -> None:
        self.replay.feed(self.events, self.marks)
        self.events = []
        if self.thins:
            for mark in self.marks:
                mark.forget()
            drop_unused_marks(self.marks, [self.replay])
        self.most = max(self.most, len(self.marks))

    def said(self) -> list[Any]:
        """Everything that is ever asked of marks."""
        self.mark(Phase.FORWARD, self.marks[-1].step, categories=dict.fromkeys(self.some(0.2), P))
        self.drain()
        replay, all_marks = self.replay, self.marks
        assert not replay.inconsistent_events
        steps = steps_of(all_marks, replay.events)
        found: list[Any] = []
        for peak, how in (
            (replay.peak, {}),
            (replay.peak, {"cut_off": True}),
            (replay.now(), {"cut_off": True, "now": True}),
        ):
            found.append(DeviceAccount("cuda:0", reserved=peak.reserved))
            explain(found[-1], peak, all_marks, **how)
        found.append((steps.name, steps.count))
        found.append([(b.address, b.event, steps.of(b)) for b in replay.live if b.event])
        return found


P = Category.OPTIMIZER_STATE


def test_what_is_said_is_the_same() -> None:
    for seed in range(200):
        whole, thinned = (Program(seed, thins) for thins in (False, True))
        for program in (whole, thinned):
            program.run(60)
        assert thinned.said() == whole.said(), seed
        assert len(thinned.marks) < len(whole.marks)


def test_a_run_without_leaks_has_no_more_marks_the_longer_it_is() -> None:
    short, long = (Program(0, True, leaks=False) for _ in range(2))
    short.run(200)
    long.run(2000)
    assert long.most <= max(200, 2 * short.most), (short.most, long.most)

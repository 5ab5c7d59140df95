"""When a run has shown what its program takes, and whether it has.

Note [When a run is left]
~~~~~~~~~~~~~~~~~~~~~~~~~
A job is fullest in a whole step that has the optimizer's state from the start, the second at the
earliest. What was seen decides:

1. *steps*: ``--steps N`` leaves the program after its N-th optimizer step. Without it that is the
   first from ``STEPS`` on that did not raise the peak, ``MOST_STEPS`` at most. These are steps of
   every optimizer that is there; one that pauses is not waited for once it has made ``ENOUGH``, and
   one that has not only until another has made ``PAUSES`` times as many. The peak is of what is
   allocated, or reserved: what is kept of each step may lie for long in memory that is reserved
   already. Less than ``SLOW`` bytes are no rise: losses that are kept for a curve. After a step
   that raised the peak two quiet ones are waited for: a program may keep something in every other.
   It is not left either after a step that has more allocated than any before it, which may be below
   the peak of an earlier, larger batch.
2. *it trains*: there is an optimizer, or a backward ran. Then it is left before these steps only
   where it has asked for ``TRAINING`` blocks since its last step or new peak (an optimizer whose
   steps nobody can count, a server that made one).
3. *it does not train*: what serves a model has no steps. It is left once it has asked for
   ``FACTOR`` times as many blocks without a new peak as it had when the last one came, and for at
   least ``LEAST``: blocks, not seconds, so that the answer does not depend on the machine. It is
   not left while an engine starts, which asks for many between its profile run and its cache.

With ``--steps`` it is left for its steps alone: who asks for some knows that they come.

A program that trains and of which, or of one of whose optimizers, fewer than ``ENOUGH`` steps were
seen is *undecided*: a generator's turn may come after five of its discriminator's. So is one that
was left while it grew: while each step raised the peak, or what is allocated after a step never
fell, and has not stood still for longer than it did between two rises (losses that are kept with
their graphs, logits of each evaluation). And one that was left after steps on a stream of its own:
with those torch's recipe warms up what it then captures as a CUDA graph, which has memory of its
own. The first holds
at its own end too if it has made one step, or none of an optimizer that it has run backwards for: a
job that is cut short so that it can be simulated. All else that ended by itself was seen whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

STEPS = 3
MOST_STEPS = 10
ENOUGH = 2
PAUSES = 10
SLOW = 1 << 16
"""Bytes a step of which a GPU of 80 GB holds those of a million steps."""

FACTOR = 3
LEAST = 20_000
TRAINING = 5_000_000


STILL = "the peak stood still"
"""Beginning of the text for a run that was left since nothing new came."""

BY_ITSELF = "the script ended"
"""Text for a run that was not left."""


class Step(NamedTuple):
    """What is known of a process after an optimizer step.

    Attributes:
        reserved, allocated: bytes, at most so far.
        held: bytes allocated now.
        most_held: the most of these after any step so far.
        aside: whether its stream is not the default one.
    """

    reserved: int = 0
    allocated: int = 0
    held: int = 0
    aside: bool = False
    most_held: int = 0


@dataclass(slots=True)
class Leaving:
    """Decides when to leave a run: Note [When a run is left]. ``wanted`` is a number of steps, None
    if nobody said one.

    Attributes:
        asked: blocks that had been asked for when something was new.
    """

    wanted: int | None
    asked: int = 0
    _news: tuple[int, ...] = ()
    _steps: list[Step] = field(default_factory=lambda: [Step()])

    def after_step(self, fewest: int, most: int, now: Step) -> bool:
        """Tells whether to leave after a step, with so many of the optimizer that has made fewest
        and of the one that has made most."""
        last = len(self._steps) - 1
        if fewest == last + 1:
            # The script may have set the counters back, so that these are lower.
            before = self._steps[last]
            now = now._replace(
                reserved=max(now.reserved, before.reserved),
                allocated=max(now.allocated, before.allocated),
                most_held=max(now.held, before.most_held),
            )
            self._steps.append(now)
            last += 1
        lately = (last - 1, last)
        rises = max(max(self._rise(step), self._kept(step)) for step in lately) >= SLOW
        wanted = self.wanted or (MOST_STEPS if rises else STEPS)
        # All optimizers: the last one's turn may be the fullest.
        waits = self.wanted is None and fewest < ENOUGH
        return fewest >= wanted or most >= (PAUSES if waits else 2) * wanted

    def _rise(self, step: int) -> int:
        """Bytes by which a step raised the peak, from the third on, by when what a step takes is
        there."""
        if step < STEPS:
            return 0
        before, after = self._steps[step - 1 : step + 1]
        grown = after.allocated - before.allocated
        return grown if grown >= SLOW else after.reserved - before.reserved

    def _kept(self, step: int) -> int:
        """Bytes that are allocated after a step, from the second on, and were not after any before
        it."""
        return self._steps[step].held - self._steps[step - 1].most_held if step > 1 else 0

    def what_may_come(self, ended: str) -> str:
        """Says why a job that ``ended`` so may need more later, where it grew or what it prepared
        did not come; else empty."""
        if ended == BY_ITSELF:
            return ""
        last = len(self._steps) - 1
        more = self._rise(last)
        if last <= STEPS or min(more, self._rise(last - 1)) < SLOW:
            more = self._still_kept()
        if more:
            return (
                f"it still grew, by {more / 2**20:,.1f} MiB last: a job that grows needs more "
                "later, which more --steps show"
            )
        if self.wanted is None and self._steps[-1].aside:
            return (
                "its steps ran on a stream of their own, as they do before a CUDA graph is "
                "captured, and what that takes was not seen: --to-the-end waits for it, and with "
                f"--steps {STEPS} you say that none comes"
            )
        return ""

    def _still_kept(self) -> int:
        """Bytes by which what is allocated after a step rose last, if it has risen twice at least,
        never fell, and has not stood still for longer than it did before a rise."""
        kept = rises = longest = 0
        rose_at = 1
        for step in range(2, len(self._steps)):
            grown = self._steps[step].held - self._steps[step - 1].held
            if grown <= -SLOW:
                return 0
            if grown >= SLOW:
                longest = max(longest, step - rose_at)
                rose_at = step
                kept = grown
                rises += 1
        return kept if rises > 1 and len(self._steps) - 1 - rose_at <= longest else 0

    def stands_still(self, news: tuple[int, ...], asked: int, trains: bool) -> bool:
        """Tells whether to leave after so many blocks asked for: nothing is new. ``news`` is what
        only grows: engines that are ready, steps, then peaks."""
        if news > self._news:
            self._news, self.asked = news, asked
        if self.wanted is not None:
            return False
        enough = TRAINING if trains else max(LEAST, FACTOR * self.asked)
        return asked - self.asked >= enough


def steps_seen(steps: int) -> str:
    """Text for a run that was left after so many steps."""
    return f"{steps} optimizer step{'s' if steps > 1 else ''}"


def why_undecided(ended: str, fewest: int, steps: int, backwards: int, has_optimizer: bool) -> str:
    """Reason why a run that ``ended`` so leaves open if its program fits; empty if it does not.
    ``fewest`` as for ``Leaving.after_step``, ``steps`` of the optimizer that has made most."""
    if fewest < ENOUGH <= steps and ended != BY_ITSELF:
        return (
            f"{ended} of one optimizer were seen, and {fewest or 'none'} of another, whose turn "
            "may be the fullest: --to-the-end waits for the script's end"
        )
    seen_whole = ended == BY_ITSELF and steps == 0 and not (backwards and has_optimizer)
    if steps >= ENOUGH or seen_whole or not (backwards or has_optimizer):
        return ""
    if steps:
        return (
            f"{ended}: one optimizer step was seen, and the second is the first with activations "
            "and the optimizer's state at once: let it make two"
        )
    return (
        f"{ended}: there is an optimizer, or a backward ran, and no optimizer step was seen, so "
        "that what activations, gradients and the optimizer's state take at once is not known: let "
        "it make two (steps of an optimizer that is none of torch.optim's are not counted; "
        "--to-the-end waits for the script's end)"
    )

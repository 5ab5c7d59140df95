"""When memory that outlives its step is growth.

Note [What counts as growth]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Asked is how many bytes that were made in each step are still held at the end. Healthy programs
hold much from their beginning (parameters, and what an optimizer makes at its first step), from the
last steps (a batch that was fetched ahead, the loss of the step before), and some from a step here
or there (a cache that meets a new shape, a best loss so far). A leak holds something of step after
step, up to the end. So:

* at least ``LEAST`` (8) steps are needed;
* the last ``RECENT`` (2) steps, and the one that has begun, do not count: what they made may go;
* of the rest the later half decides (*the window*): what came to rest before it is no growth;
* in the window something is held of at least ``TIMES`` (3) steps, and there is no gap longer than
  half of the window, the ends included: what leaks at every fourth step leaks;
* that is at least ``MIN_A_STEP`` (4 KiB) a step on average: a list of losses as numbers on a
  device, at 512 bytes each, costs nobody memory that he misses.

By how much it grows a step is what was made in the window after the first step of which something
is held, up to the last such step, divided by the steps between the two: so a leak at every fourth
step has the same figure wherever the window begins.

A buffer of the last hundred batches looks like a leak as long as it is not full, and later where it
reaches back into the window: the report says since when, and how many steps there were.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

LEAST = 8
RECENT = 2
TIMES = 3
MIN_A_STEP = 4096


@dataclass(frozen=True, slots=True)
class Rate:
    """By how much something grows.

    Attributes:
        a_step: bytes a step.
        since: first step of which something is held, from 1, without a gap longer than half of
            what was looked at.
    """

    a_step: int
    since: int


def rate_of(held: Mapping[int, int], steps: int) -> Rate | None:
    """Whether something grows; see Note [What counts as growth].

    Args:
        held: bytes that are held at the end, by the step that made them, from 1.
        steps: that have ended.

    Returns:
        None if it does not.
    """
    if steps < LEAST:
        return None
    end = steps - RECENT
    begin = end - (end // 2) + 1
    window = end - begin + 1
    made = sorted(s for s, nbytes in held.items() if begin <= s <= end and nbytes > 0)
    longest = window / 2
    if len(made) < TIMES or _gap([begin - 1, *made, end + 1]) - 1 > longest:
        return None
    a_step = sum(held[s] for s in made[1:]) // (made[-1] - made[0])
    if a_step < MIN_A_STEP:
        return None
    since = made[0]
    for step in sorted((s for s, n in held.items() if s < since and n > 0), reverse=True):
        if since - step > longest + 1:
            break
        since = step
    return Rate(a_step, since)


def _gap(numbers: list[int]) -> int:
    return max(b - a for a, b in itertools.pairwise(numbers))

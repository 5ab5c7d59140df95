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
step has the same figure wherever the window begins. Of the two of these steps the half counts, that
two sizes by turns have one figure, too.

A buffer of the last hundred batches holds something of step after step, too. It is known by what
the same line had made before the window and let go of in it (*turned over*): of a full buffer that
is as much as it holds of the window. So that is taken off, the last step counts whole, of which the
buffer has some, and where less than a third remains nothing grows. A buffer that is not full yet
looks like a leak: the report says since when, and how many steps there were.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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


class Gone(NamedTuple):
    """What was made in one step and let go of in another, both from 1."""

    made: int
    ended: int
    nbytes: int


def rate_of(held: Mapping[int, int], steps: int, gone: Iterable[Gone] = ()) -> Rate | None:
    """Whether something grows; see Note [What counts as growth].

    Args:
        held: bytes that are held at the end, by the step that made them, from 1.
        steps: that have ended.
        gone: what was held for long and is held no more, as far as known.

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
    edges = itertools.pairwise([begin - 1, *made, end + 1])
    if len(made) < TIMES or max(b - a for a, b in edges) - 1 > longest:
        return None
    later = sum(held[s] for s in made[1:])
    turned_over = 0
    for g in gone:
        if g.made < begin <= g.ended <= end:
            turned_over += g.nbytes
        elif begin <= g.made <= end < g.ended:  # It would be held, were the end that of the window.
            turned_over -= g.nbytes
    if not turned_over:
        later += (held[made[0]] - held[made[-1]]) // 2
    a_step = (later - turned_over) // (made[-1] - made[0])
    if a_step < MIN_A_STEP or 3 * turned_over > 2 * later:
        return None
    since = made[0]
    for step in sorted((s for s, n in held.items() if s < since and n > 0), reverse=True):
        if since - step > longest + 1:
            break
        since = step
    return Rate(a_step, since)

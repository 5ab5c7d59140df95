"""When a new step begins, and old outputs may therefore be overwritten.

Note [Generations]
~~~~~~~~~~~~~~~~~~
Within one step everything that is live is respected. When the next step begins, its
functions run from the root of the tree again and overwrite what the last one left. A
*generation* is torch's name for a step. Its number is torch's own: it moves with
``torch.compiler.cudagraph_mark_step_begin()``, and until someone calls that, with every
call of a function that ``torch.compile`` returned.

A generation that moved by itself does not end a step while a backward is pending:
training calls several compiled functions before it calls backward once. Waiting for
*every* backward would wait for ever where a forward is never followed by one, so the
first backward releases the step. An explicit mark always ends it.
"""

from __future__ import annotations

import torch

from . import _torch_compat as compat


class Generations:
    """The generation of the last run, and whether a backward is pending.

    Attributes:
        mark: torch's ``MarkStepBox``.
        tracker: torch's ``GenerationTracker``.
        last: generation in which the manager ran something last.
        pending_backward: a forward ran, and since then no backward.
    """

    __slots__ = ("last", "mark", "pending_backward", "tracker")

    def __init__(self) -> None:
        self.mark, self.tracker = compat.step_counters()
        self.last = -1
        self.pending_backward = False

    def current(self) -> int:
        """Number of the generation that runs now; negative if the user marks steps."""
        return int(self.mark.mark_step_counter or self.tracker.generation)

    def moved(self) -> bool:
        """Whether something ran in another generation than this one."""
        return self.last != self.current()

    def may_begin(self) -> bool:
        """Whether a step may begin, overwriting what the last one left."""
        return self.moved() and (self.mark.mark_step_counter != 0 or not self.pending_backward)

    def update(self) -> None:
        """Something runs now."""
        self.last = self.current()


def mark_step_begin() -> None:
    """A new step begins: outputs of the last one may be overwritten.

    The same as ``torch.compiler.cudagraph_mark_step_begin()``.
    """
    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

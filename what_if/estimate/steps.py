"""Follows the step of a training at which its simulated run may be left."""

from __future__ import annotations

from . import _torch_compat
from .estimating import step_time
from .recording import Recording
from .step_time import StepTime

FIRST = 3
"""The first step that is followed: with CUDA graphs it is the first that replays them."""


class StepTimes:
    """Time of the step that is followed: ``FIRST``, or the last of those that were asked for.

    Args:
        gpu: its key.
        wanted: steps after which the run is left; None if nobody said so.
    """

    def __init__(self, gpu: str, wanted: int | None) -> None:
        self._gpu = gpu
        self._first = max(2, wanted or FIRST)
        self._recording = Recording()
        self._recording.install()
        self._follows = False
        self._seen = 0
        self.time: StepTime | None = None
        self._problem = ""

    def after_step(self, steps: int, *, last: bool) -> None:
        """End the step that is followed, if there is one, and begin with the next unless this was
        the ``last``; ``steps`` is of the optimizer that has made most."""
        if steps == self._seen or self._problem:
            return
        self._seen = steps
        try:
            self._follow(steps, last)
        except Exception as e:  # What the run takes is worth more than its time.
            self._problem = repr(e)

    @property
    def notes(self) -> list[str]:
        """Why there is no time, in a sentence, if memprof failed."""
        problem = self._problem or self._recording.problem
        return [f"memprof could not follow what is launched: {problem}"] if problem else []

    def _follow(self, steps: int, last: bool) -> None:
        if self._follows:
            self._follows = False
            recorded = self._recording.end()
            self.time = step_time(recorded, self._gpu, tf32=_torch_compat.allows_tf32())
        # Once: in one of hundreds of runs a second session of Kineto's ended the process.
        if self.time is None and not last and steps + 1 == self._first:
            self._follows = self._recording.begin()

"""Follows the step of a training at which its simulated run may be left."""

from __future__ import annotations

from memprof.profiler.model import StepTime
from memprof.simulated_cuda import control

from . import _torch_compat
from .estimating import step_time
from .recording import Recording

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
        if self._first == 2:  # The log is not on sooner than it must: a program may never step.
            self._recording.pass_step()
        self._links: dict[str, float | None] = {}
        self._follows = False
        self._tried = False
        self._within = False
        self._seen = 0
        self.time: StepTime | None = None
        self._problem = ""

    def after_step(self, steps: int, *, last: bool) -> None:
        """End the step that is followed, if there is one, and begin with the next unless this was
        the ``last``; ``steps`` is of the optimizer that has made most."""
        if steps == self._seen or self._problem:
            return
        # A capture does not do the work of a step, and a backward has threads of its own, in which
        # a profiler that begins here would not end.
        if control.active_captures() or _torch_compat.in_backward():
            self._within = True
            return
        self._seen = steps
        try:
            self._follow(steps, last)
        except Exception as e:  # What the run takes is worth more than its time.
            self._problem = repr(e)

    def follow_collectives(self, link: float | None, network: float | None) -> None:
        """Follow this rank's collectives too, the other ranks of its job not being there; speeds
        of their links are in 10^9 bytes/s, None for the GPU's own."""
        self._recording.follow_collectives()
        self._links = {"link": link, "network": network}

    @property
    def notes(self) -> list[str]:
        """Why there is no time, or one of a part of the step, in a sentence."""
        problem = self._problem or self._recording.problem
        if self._within and not self._tried:
            problem = "its optimizers step within a backward or a capture"
        return [f"memprof could not follow all that is launched: {problem}"] if problem else []

    def _follow(self, steps: int, last: bool) -> None:
        if self._follows:
            self._follows = False
            recorded = self._recording.end()
            if recorded is not None:
                kinds = _torch_compat.tf32_kinds()
                self.time = step_time(recorded, self._gpu, tf32=kinds, links=self._links)
        # Once: in one of hundreds of runs a second session of Kineto's ended the process.
        if self._tried or last:
            return
        if steps + 1 < self._first:
            self._recording.pass_step()
            return
        self._tried = True
        self._follows = self._recording.begin()

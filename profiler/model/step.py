"""A step of a program, as a line of a step record has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from .limits import Count, Int, Positive
from .profile import DeviceTotals

StepEnd = Literal["session", "mark", "optimizer", "call"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    Attributes:
        step: its number in the session, from 1.
        time_ns: ``time.time_ns()`` at its end.
        duration_ns: time since the end of the step before, of the first since the session began.
        ended_by: what ended it: ``call``, the program by ``session.step()``; ``optimizer``, the
            step of an optimizer; ``mark``, the mark that the next one begins; ``session``, the end
            of it all.
        rank: of the process.
        devices: what the allocators of CUDA devices counted at its end; the most of each is since
            the process began, or has reset these counters.
        peak: the most bytes of compiled code that are known to have been live at an instant of the
            step, by device and category; what no category is known of is ``unknown``.
        recorded, replayed: CUDA graphs of memprof's graph trees in the step.
        fallen_back: calls that ran without a graph in the step, though graph trees served them;
            warm-ups are not counted.
    """

    step: Positive
    time_ns: Int
    duration_ns: Count
    ended_by: StepEnd
    rank: Count = 0
    devices: list[DeviceTotals] = field(default_factory=list)
    peak: dict[str, dict[str, Count]] = field(default_factory=dict)
    recorded: Count = 0
    replayed: Count = 0
    fallen_back: Count = 0
    version: Literal[1] = 1

    def metrics(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Each figure with a name and labels of its own, for a dashboard: ``step``,
        ``step_seconds``, ``graphs`` by ``what``, ``allocated_bytes`` and others by ``device``,
        ``peak_bytes`` by ``device`` and ``category``; each has the ``rank``."""
        rank = {"rank": str(self.rank)}
        yield "step", rank, self.step
        yield "step_seconds", rank, self.duration_ns / 1e9
        for what in ("recorded", "replayed", "fallen_back"):
            yield "graphs", {**rank, "what": what}, getattr(self, what)
        for of in self.devices:
            for what in ("allocated", "reserved", "most_allocated", "most_reserved"):
                yield f"{what}_bytes", {**rank, "device": of.device}, getattr(of, what)
        for device, categories in self.peak.items():
            for category, nbytes in categories.items():
                yield "peak_bytes", {**rank, "device": device, "category": category}, nbytes

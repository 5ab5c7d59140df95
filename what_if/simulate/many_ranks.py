"""Simulates ranks of a job, several at once.

Note [Ranks at once]
~~~~~~~~~~~~~~~~~~~~
That two ranks take the same is known when both have run: a script may ask for its rank anywhere. So
each that was asked for is run. The first runs alone, and shows how long a rank takes and how much
of the host's memory; as many of the others as cores and free memory allow run at once, each in its
script's own process, for which a thread waits. An executor that was given gets all at once, and
decides by itself; it needs ``submit``, and ``result`` and ``cancel`` of what that returns.

Who runs at the same time hears nothing of the others (Note [Messages of a pipeline]). Where a rank
got messages that nobody knew, and who sends them has shown them meanwhile, it runs again: down a
pipeline, stage by stage, so never more often than there are ranks.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from memprof.profiler.support.host import available_memory
from memprof.profiler.views.report.format import format_bytes
from memprof.simulated_cuda.errors import SimulationError

from .command_line import Command
from .failures import failure_of
from .parent import Settings, Simulation, end_scripts, exits_on_signals, simulate
from .request import Outcome


def simulate_ranks(
    command: Command,
    each: Sequence[Settings],
    environment: Mapping[str, str],
    executor: Any = None,
) -> list[Simulation]:
    """Run a script as each of some ranks of a job (Note [Ranks at once]), and return what became of
    each, in their order.

    Raises:
        memprof.simulated_cuda.errors.SimulationError: the device cannot be had here.
    """
    found: dict[int, Simulation] = {}
    heard = {settings.rank: settings for settings in each}
    waiting = list(each)
    if executor is None:
        first = waiting.pop(0)
        began = time.monotonic()
        found[first.rank] = simulate(command, first, environment)
        if waiting:
            executor = _pool(waiting, time.monotonic() - began)
    for _ in each:
        if not waiting:
            break
        waiting = [_hearing(settings, found) for settings in waiting]
        heard.update((settings.rank, settings) for settings in waiting)
        _run_together(command, waiting, environment, executor, found)
        waiting = [s for s in heard.values() if _knows_more(s, found)]
    return [found[settings.rank] for settings in each]


def _say(settings: Settings, text: str) -> None:
    if not settings.quiet:
        print(f"memprof simulate: {text}", file=sys.stderr, flush=True)


def _pool(others: Sequence[Settings], seconds: float) -> ThreadPoolExecutor:
    """An executor for the ranks that are left after one took ``seconds``, with as many threads as
    there are cores, and as often as what that one had of the host's memory is free."""
    import resource  # Which not every system has; simulation needs Linux.

    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    free = available_memory()
    room = len(others) if free is None else free // max(resident, 1)
    workers = max(1, min(len(others), len(os.sched_getaffinity(0)), room))
    _say(
        others[0],
        f"the first rank took {seconds:.0f} s and {format_bytes(resident)} of host memory; "
        f"{len(others)} more, {workers} at once, take about "
        f"{math.ceil(len(others) / workers) * seconds:.0f} s",
    )
    return ThreadPoolExecutor(workers)


def _hearing(settings: Settings, found: Mapping[int, Simulation]) -> Settings:
    """Settings of a rank that hears what others have sent to it."""
    sent = {rank: s.outcome.sent.get(settings.rank) for rank, s in found.items()}
    return replace(settings, heard={rank: said for rank, said in sent.items() if said})


def _knows_more(settings: Settings, found: Mapping[int, Simulation]) -> bool:
    """Tells whether a rank got messages that nobody knew, which now are known."""
    now = _hearing(settings, found).heard
    unanswered = found[settings.rank].outcome.unanswered
    return any(now.get(rank) != settings.heard.get(rank) for rank in unanswered)


def _run_together(
    command: Command,
    each: Sequence[Settings],
    environment: Mapping[str, str],
    executor: Any,
    found: dict[int, Simulation],
) -> None:
    """Put what becomes of ranks into ``found``."""
    submitted = [executor.submit(simulate, command, s, environment) for s in each]
    try:
        with exits_on_signals():
            for settings, future in zip(each, submitted, strict=True):
                again = ", again" if settings.rank in found else ""
                try:
                    s = future.result()
                except SimulationError:
                    raise
                except Exception as e:  # Of the executor: its worker died, or is not reached.
                    failed = Outcome(failure=failure_of(e, (__file__,)))
                    s = Simulation(settings.gpu, None, settings.job, failed)
                found[settings.rank] = s
                fits = {True: "fits", False: "does not fit", None: "it cannot be said"}[s.fits]
                _say(settings, f"rank {s.rank}{again}: {fits}, needs {format_bytes(s.needed)}")
    except BaseException:
        for future in submitted:
            future.cancel()
        end_scripts()
        raise

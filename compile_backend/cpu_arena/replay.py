"""A compiled CPU graph whose temporaries and outputs lie in the arena of the process.

Note [What is different in an arena]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A leased output lies in memory that torch did not allocate, and torch cannot change the size
of such a storage. ``y.resize_()`` beyond its size, and ``out=y`` with a larger result, raise
where they would work on ordinary memory. And torch's own memory profilers do not see it;
memprof's data-flow profile does (``profiler/dataflow/replays.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memprof.cudagraph_trees.settings import current_settings
from memprof.profiler.process_hooks import on_replay_memory, on_reset

from .memory import LeasePool
from .tensors import ScratchPlan, ScratchPool

BoxedCall = Callable[[list[Any]], Any]

POOL = LeasePool(lambda: current_settings().pool_budget)
SCRATCHES = ScratchPool(POOL)
on_replay_memory(lambda: [POOL.replay_memory()])
# Free memory goes back; calls that come later start again.
on_reset(POOL.trim)


def with_scratch(
    plan: ScratchPlan[BoxedCall], lost: Callable[[], None], plain: BoxedCall
) -> BoxedCall:
    """``plain`` with the temporaries of ``plan`` in a scratch that no other call uses meanwhile.

    Args:
        plan: of the temporaries.
        lost: called when somebody has kept a temporary beyond a call.
        plain: called when there is no memory.
    """
    idle, take, abandon, bound = SCRATCHES.idle, SCRATCHES.take, SCRATCHES.abandon, plan.bound

    def call(inputs: list[Any]) -> Any:
        try:
            scratch = idle.pop()
        except IndexError:
            found = take()
            if found is None:
                return plain(inputs)
            scratch = found
        run = bound.get(scratch)
        if run is None:
            run = scratch.prepare(plan)
            if run is None:
                idle.append(scratch)
                return plain(inputs)
        before = scratch.references()
        try:
            out = run(inputs)
        except BaseException:
            # The traceback may hold views of temporaries.
            abandon(scratch)
            raise
        if scratch.references() <= before:
            idle.append(scratch)
        else:
            abandon(scratch)
            lost()
        return out

    return call

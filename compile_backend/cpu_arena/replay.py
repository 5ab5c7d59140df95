"""A compiled CPU graph whose temporaries and outputs lie in the arena of the process.

Note [What is different in an arena]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A leased output lies in memory that torch did not allocate, and torch cannot change the size
of such a storage. ``y.resize_()`` beyond its size, and ``out=y`` with a larger result, raise
where they would work on ordinary memory. And torch's own memory profilers do not see it;
memprof's data-flow profile does (``profiler/dataflow/replays.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from memprof.cudagraph_trees.account.attribution import PoolParts
from memprof.cudagraph_trees.settings import current_settings
from memprof.profiler.process_hooks import on_reset
from memprof.profiler.replay_memory import register

from .. import _torch_compat
from ..call_log import Counter
from .memory import LeasePool
from .plan import Site
from .tensors import LeasedTensors, ScratchPlan, ScratchPool, TensorShape
from .wrapper_code import WrapperCode, rewritten

BoxedCall = Callable[[list[Any]], Any]

POOL = LeasePool(lambda: current_settings().pool_budget)
SCRATCHES = ScratchPool(POOL)
register(lambda: [POOL.replay_memory()])
# Free memory goes back; calls that come later start again.
on_reset(POOL.trim)


def replay_in_arena(
    code: WrapperCode,
    compiled: Any,
    plain: BoxedCall,
    sites: Sequence[Site],
    shapes: Mapping[int, TensorShape],
    scratch_bytes: int,
    *,
    path: str,
    label: str,
    replays: Counter,
    lost: Callable[[], None],
) -> BoxedCall:
    """The call in the steady state of a graph.

    Args:
        code: of the graph's wrapper.
        compiled: Inductor's ``CompiledFxGraph``.
        plain: its callable, for when there is no memory.
        sites: allocations that come out of the arena.
        shapes: of the tensors, by line.
        scratch_bytes: that the temporaries among ``sites`` need.
        path: file name of the generated code, for tracebacks.
        label: of the graph.
        replays: advanced once a call.
        lost: called when somebody has kept a temporary beyond a call.
    """
    module_globals = _torch_compat.generated_globals(compiled)
    assert module_globals is not None
    scratch = [s for s in sites if s.offset is not None]
    clone = rewritten(
        code,
        path,
        module_globals,
        [s.line for s in scratch],
        {
            s.line: LeasedTensors(POOL, shapes[s.line], f"{label}: {s.name}")
            for s in sites
            if s.offset is None
        },
    )
    tick = replays.tick

    def bound(tensors: Sequence[torch.Tensor]) -> BoxedCall:
        def replay(inputs: list[Any]) -> Any:
            tick()
            return clone(inputs, tensors)

        return _torch_compat.realign_inputs(replay, compiled)

    if scratch:
        tensors = [(s.offset or 0, shapes[s.line]) for s in scratch]
        call = _with_scratch(ScratchPlan(scratch_bytes, tensors, bound), lost, plain)
    else:
        call = bound(())
    POOL.add_user(call)
    return call


def _with_scratch(
    plan: ScratchPlan[BoxedCall], lost: Callable[[], None], plain: BoxedCall
) -> BoxedCall:
    """``plain`` with the temporaries of ``plan`` in a scratch that no other call uses meanwhile."""
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


def explain_arena() -> PoolParts:
    """What the arena's bytes are now; ``pools.explain_pools`` has this beside other pools.

    The arena has no ``workspace``: what operators take for themselves is not from it. A block
    that nobody knows would be ``unattributed``; there is none.
    """
    segments, labels = POOL.segments(), POOL.leased()
    nodes: dict[int | str, int] = {}
    rounding = free = unattributed = 0
    for block in (b for segment in segments for b in segment.blocks):
        label = labels.get(block.address)
        if not block.live:
            free += block.nbytes
        elif label is None:
            unattributed += block.nbytes
        else:
            nodes[label] = nodes.get(label, 0) + block.requested
            rounding += block.nbytes - block.requested
    return PoolParts(nodes, rounding, workspace=0, unattributed=unattributed, free=free)

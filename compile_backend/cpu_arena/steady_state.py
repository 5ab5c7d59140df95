"""Whether the calls of a compiled CPU graph run in the arena, once they have been observed.

Note [Why CPU graphs do not go through the tree manager]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The manager's paths, generations and liveness exist because a CUDA replay overwrites addresses. A
CPU replay is handed its memory, and every tensor that leaves it owns its block (Note [Ownership on
the CPU]). So a call here is: take a scratch, run the rewritten wrapper, put it back.

Note [Where it pays]
~~~~~~~~~~~~~~~~~~~~
What an arena saves is page faults. Whether a graph has any depends on sizes, on the allocator and
on what that has seen before (glibc raises its threshold, tcmalloc never gives back), so they are
counted: after a graph has been observed, and if its plan has enough large buffers at all, a few
calls run plainly. The arena is used if it saves at least twice what it costs, or if that is nothing
beside a call with such large buffers. ``options={"graphs": True}`` skips the trial, ``False`` turns
arenas off.

The ranks of a distributed job may decide differently, without a deadlock or another result: the
same lines call the same kernels and collectives in the same order, and what a collective is handed
never comes out of an arena (Note [What can be planned]).

What generated code does not allocate pays for its page faults: most of all the gradient of a loss
outside of the compiled model, which AOTAutograd makes contiguous at the model's output size in each
step (64 MiB of output: 31 of 246 ms a step). Compiling the loss with the model is the remedy.
"""

from __future__ import annotations

import functools
import itertools
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memprof.cudagraph_trees.account.placement import keep
from memprof.profiler.model import AllocationProgram, GraphRecord, LedgerKind, TreeDetail

from .. import _torch_compat
from ..ledger import Counter
from ..runtime import RUNTIME
from .memory import PAGE
from .plan import LARGE, ArenaPlan, placement_of_plan, plan_program
from .tensors import POOL, BoxedCall, ScratchPlan, TensorShape, leased_tensors, with_scratch
from .wrapper_code import WrapperCode, evaluate, read_wrapper, rewritten

Use = Callable[[BoxedCall], None]

TRIAL_CALLS = 4
WORTH_TRYING = 4 * LARGE
"""Bytes in large buffers below which no trial is made."""

SURELY_LARGE = 8 << 20
NEGLIGIBLE = 200
"""glibc keeps or returns buffers of some megabytes as its heap happens to lie, so a trial may
see no fault of a graph that has thousands in the next minute. From so many bytes on an arena
is used all the same if it costs less than one part in so many of a call."""

# Measured with benchmarks/cpu_arena.py: what a call costs more in the arena, nanoseconds.
_COST_OF_CALL = 2_000
_COST_OF_LEASE = 8_000
_COST_OF_FAULT = 500
"""Of one minor page fault, nanoseconds: of bare metal. In a virtual machine it can be several times
that, which makes the arena pay sooner than it is used."""


class _NoArena(Exception):
    """A graph does not run in the arena; the message says why, in the ledger's words."""


@dataclass(eq=False, repr=False)
class ArenaSteadyState:
    """Moves the calls of one compiled graph into the arena where that pays.

    Args:
        compiled: Inductor's ``CompiledFxGraph``; ``plain`` is its callable, and ``module_globals``
            are those of its code, empty if there are none.
        sizes: which inputs are integers.
        wanted: option ``graphs``; not False.
    """

    record: GraphRecord
    compiled: Any
    module_globals: dict[str, Any]
    plain: BoxedCall
    sizes: Sequence[int]
    wanted: bool | None

    @functools.cached_property
    def _code(self) -> WrapperCode | None:
        return read_wrapper(getattr(self.compiled, "source_code", "") or "")

    def __call__(self, program: AllocationProgram, use: Use) -> BoxedCall:
        """What to call from now on, for inputs with the program's key; ``use`` is called with
        another callable when it should change."""
        return self._or_plain("planning an arena", lambda: self._begin(program, use))

    def _or_plain(self, what: str, made: Callable[[], BoxedCall]) -> BoxedCall:
        """What ``made`` returns; the plain callable where it says why not, or fails."""
        try:
            return made()
        except _NoArena as reason:
            RUNTIME.ledger.add(LedgerKind.NOT_GRAPHED, self.record.id, str(reason))
        except Exception as error:
            RUNTIME.ledger.fallback(self.record.id, what, error)
        return self.plain

    def _begin(self, program: AllocationProgram, use: Use) -> BoxedCall:
        if not self.record.devices:
            raise _NoArena("no arena for graphs on no device")
        code = self._code
        if code is None or not self.module_globals:
            raise _NoArena("no arena: the generated code has no Python wrapper")
        min_lease = 1 if self.wanted else 2 * LARGE
        plan = plan_program(program, code.allocations, code.unsafe, min_lease)
        if not plan.sites:
            raise _NoArena("no arena: the generated code allocates nothing")
        if self.wanted:
            return self._replay(program, plan, use, "option graphs=True")
        if plan.large_bytes < WORTH_TRYING:
            raise _NoArena(
                f"{plan.large_bytes} bytes in buffers of {LARGE} bytes and more: "
                "too few for an arena to save anything"
            )
        return self._trial(program, plan, use)

    def _trial(self, program: AllocationProgram, plan: ArenaPlan, use: Use) -> BoxedCall:
        """Runs plainly, counts page faults, then decides for good."""
        plain, left = self.plain, itertools.count(TRIAL_CALLS - 1, -1)
        trials: list[tuple[int, int]] = []  # page faults and nanoseconds of each
        count, now = minor_page_faults, time.perf_counter_ns

        def decided() -> BoxedCall:
            faults, times = zip(*trials, strict=True)
            why = _why_it_pays(plan, sum(faults) / len(faults), min(times))
            return self._replay(program, plan, use, why)

        def call(inputs: list[Any]) -> Any:
            before, start = count(), now()
            out = plain(inputs)
            trials.append((count() - before, now() - start))
            if next(left) == 0:
                use(self._or_plain("moving a graph into an arena", decided))
            return out

        return call

    def _replay(self, program: AllocationProgram, plan: ArenaPlan, use: Use, why: str) -> BoxedCall:
        code, compiled = self._code, self.compiled
        assert code is not None
        known = evaluate(code, self.module_globals, self.sizes, program.key)
        shapes = {line: TensorShape.of(*arguments) for line, arguments in known.items()}
        sites = [s for s in plan.sites if s.line in shapes and shapes[s.line].nbytes == s.nbytes]
        if not sites:
            raise _NoArena("no arena: sizes depend on more than the graph's inputs")
        # Below, malloc is as fast as all that a scratch needs.
        use_scratch = plan.scratch_bytes >= LARGE or self.wanted
        scratch = [s for s in sites if s.offset is not None and use_scratch]
        leased = [s for s in sites if s.offset is None]
        id_, label, replays = self.record.id, self.record.label, Counter()
        leases = {
            s.line: leased_tensors(POOL, shapes[s.line], f"{label}: {s.name}") for s in leased
        }
        clone = rewritten(code, self.module_globals, [s.line for s in scratch], leases)

        tick = replays.tick

        def bound(tensors: Sequence[torch.Tensor]) -> BoxedCall:
            def replay(inputs: list[Any]) -> Any:
                tick()
                return clone(inputs, tensors)

            return _torch_compat.realign_inputs(replay, compiled)

        call = bound(())
        scratch_bytes = least = 0
        if scratch:
            scratch_bytes, least = plan.scratch_bytes, plan.lower_bound
            tensors = [(s.offset or 0, shapes[s.line]) for s in scratch]
            lost = functools.partial(self._lost, program, use)
            call = with_scratch(ScratchPlan(scratch_bytes, tensors, bound), lost, self.plain)
            used = replace(plan, sites=tuple(scratch))
            keep(self.record, placement_of_plan(id_, program, used))
        POOL.add_user(call)
        RUNTIME.ledger.add(
            LedgerKind.RECORD,
            id_,
            f"planned into an arena ({why}): {len(scratch)} temporaries in {scratch_bytes} bytes "
            f"(no plan can do with fewer than {least}), {len(leased)} outputs in blocks of "
            f"{sum(s.nbytes for s in leased)} bytes; {sum(plan.left_out.values())} bytes a call "
            "are allocated outside of it",
            tree=_detail(label, program, scratch_bytes),
        )
        sizes = f" with sizes {', '.join(map(str, program.key))}" if program.key else ""
        RUNTIME.ledger.count(
            LedgerKind.REPLAY,
            id_,
            f"ran in the arena{sizes}",
            replays,
            functools.partial(_detail, label, program),
        )
        return call

    def _lost(self, program: AllocationProgram, use: Use) -> None:
        RUNTIME.ledger.add(
            LedgerKind.TREE_FAILURE,
            self.record.id,
            "somebody keeps a temporary of this graph beyond its call; it runs without an "
            "arena from here on",
            tree=_detail(self.record.label, program),
        )
        use(self.plain)


def _why_it_pays(plan: ArenaPlan, faults: float, took: int) -> str:
    """Why a graph is moved into the arena.

    Args:
        faults: mean of the trial's calls.
        took: the shortest of them, nanoseconds.

    Raises:
        _NoArena: it does not pay.
    """
    # Operators that allocate for themselves go on having their share.
    share = plan.large_bytes / (plan.large_bytes + sum(plan.left_out.values()))
    saved = min(faults * share, plan.large_bytes / PAGE) * _COST_OF_FAULT
    cost = _COST_OF_CALL + sum(s.offset is None for s in plan.sites) * _COST_OF_LEASE
    if saved >= 2 * cost:
        return "a call has many page faults"
    if plan.large_bytes >= SURELY_LARGE and cost * NEGLIGIBLE <= took:
        return "it costs nothing beside such a call"
    raise _NoArena("a call has too few page faults for an arena to save anything")


def _detail(label: str, program: AllocationProgram, marginal: int = 0) -> TreeDetail:
    pool = POOL.reserved_bytes
    return TreeDetail("cpu", label, key=program.key, pool_after=pool, marginal=marginal)


def minor_page_faults() -> int:
    """Minor page faults so far: of this thread if torch computes in no other, else of the
    process. Other threads of the user's add to the second."""
    alone = torch.get_num_threads() == 1
    who = resource.RUSAGE_THREAD if alone else resource.RUSAGE_SELF
    return resource.getrusage(who).ru_minflt

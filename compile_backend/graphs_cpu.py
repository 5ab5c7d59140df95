"""Replaying compiled CPU graphs out of an arena.

Note [Why CPU graphs do not go through the tree manager]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The manager's paths, generations and liveness exist because a CUDA replay overwrites
addresses, whoever holds them. A CPU replay is handed its memory, and every tensor that
leaves it owns its block (Note [Ownership on the CPU] in ``cudagraph_trees/arena``), so
there is nothing for the manager to decide: several forwards with pending backwards, outputs
that are kept for ever, steps and resets all follow from ownership. Asking it anyway costs
some microseconds a call, against the 2 % that a CPU graph may lose where it gains
nothing. So a call here is: take a scratch, run the rewritten wrapper, put it back. Decisions
go to the ledger that the backend's other decisions go to. (The manager does run on the CPU, with
``cudagraph_trees/device/cpu``: for functions that are given to it directly.)

Note [Where it pays]
~~~~~~~~~~~~~~~~~~~~
What an arena saves is page faults. Whether a graph has any depends on sizes, on the
allocator in use and on what it has seen before (glibc raises its threshold, tcmalloc never
gives back), so it is not computed but counted: after a graph has been observed, and if its
plan has enough large buffers at all, a few calls run plainly and the process's minor page
faults are counted. Their price is measured once a process. The arena is used if it saves
at least twice what it costs, or if that is nothing beside a call with such large buffers.
``options={"graphs": True}`` skips the trial, ``False`` turns arenas off.

The ranks of a distributed job decide each for itself, without a word to the others, and may
decide differently. That can be no deadlock and no other result: the same lines call the same
kernels and collectives in the same order, only in other memory (and what a collective is
handed never comes out of an arena, Note [What can be planned] in ``arena_plan``). It is a
difference in speed, and in what Note [What is different in an arena] says.

Note [Memory beside the arena]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What is not allocated by generated code stays with malloc, and pays for its page faults there.
One large case: a loss that is computed outside of the compiled model. Autograd's gradient of a
sum or mean is one element, expanded; AOTAutograd makes it contiguous before it calls the
backward (``aten::empty_strided`` in ``CompiledFunctionBackward``), which is a tensor as large as
the model's output, new in each step. With a 64 MiB output that is 16,385 page faults and 31 of
246 ms a step, where the same model with its loss compiled has none (a thin MLP, one thread,
glibc). tcmalloc keeps that block, so against tcmalloc such a step takes 1.09 times as long, and
0.97 times with the loss inside. Compiling the loss with the model is the remedy; an arena
cannot be, short of taking over torch's own allocator.

Note [What is different in an arena]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A leased output lies in memory that torch did not allocate, and torch cannot change the size
of such a storage. ``y.resize_()`` beyond its size, and ``out=y`` with a larger result, raise
where they would work on ordinary memory. And torch's own memory profilers do not see it;
memprof's data-flow profile does (``profiler/dataflow/replays.py``).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from memprof.cudagraph_trees.account.attribution import PoolParts
from memprof.cudagraph_trees.account.placement import keep, placement_of_plan
from memprof.cudagraph_trees.arena import PAGE, SUPPORTED, LeasePool, Tokens
from memprof.cudagraph_trees.arena_plan import LARGE, ArenaPlan, plan_program
from memprof.cudagraph_trees.arena_tensors import (
    LeasedTensors,
    ScratchPlan,
    ScratchPool,
    TensorShape,
)
from memprof.cudagraph_trees.settings import current_settings
from memprof.profiler.model import AllocationProgram, GraphRecord, LedgerKind, TreeDetail
from memprof.profiler.process_hooks import on_reset
from memprof.profiler.replay_memory import register

from . import _torch_compat
from .arena_code import WrapperCode, evaluate, read_wrapper, rewritten
from .call_log import Counter
from .ledger import Ledger

BoxedCall = Callable[[list[Any]], Any]
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

POOL = LeasePool(lambda: current_settings().pool_budget)
SCRATCHES = ScratchPool(POOL)
register(lambda: [POOL.replay_memory()])


class CpuGraphs:
    """Moves the calls of one compiled graph into the arena where that pays.

    Args:
        record: of the graph.
        compiled: Inductor's ``CompiledFxGraph``.
        plain: its callable.
        sizes: which inputs are integers.
        ledger: told what was decided.
        wanted: option ``graphs``.
    """

    def __init__(
        self,
        record: GraphRecord,
        compiled: Any,
        plain: BoxedCall,
        sizes: Sequence[int],
        ledger: Ledger,
        wanted: bool | None,
    ) -> None:
        self.record = record
        self.compiled = compiled
        self.plain = plain
        self.sizes = sizes
        self.ledger = ledger
        self.wanted = wanted
        self._code: WrapperCode | None = None

    def start(self, program: AllocationProgram, use: Use) -> BoxedCall:
        """What to call from now on, for inputs with the program's key.

        Args:
            program: as observed.
            use: called with another callable when it should change.
        """
        if self.wanted is False:
            return self.plain
        try:
            plan = self._plan(program)
            if isinstance(plan, str):
                self._skip(plan)
                return self.plain
            if self.wanted:
                return self._replay(program, plan, use, "option graphs=True")
            if plan.large_bytes < WORTH_TRYING:
                self._skip(
                    f"{plan.large_bytes} bytes in buffers of {LARGE} bytes and more: "
                    "too few for an arena to save anything"
                )
                return self.plain
            return self._trial(program, plan, use)
        except Exception as error:
            self.ledger.fallback(self.record.id, "planning an arena", error)
            return self.plain

    # ---- deciding

    def _plan(self, program: AllocationProgram) -> ArenaPlan | str:
        """A plan, or why there is none."""
        if not SUPPORTED:
            return "no arena on this system: there are no anonymous private mappings"
        if self.record.devices != ("cpu",):
            return f"no arena for graphs on {', '.join(self.record.devices) or 'no device'}"
        if self._code is None:
            self._code = read_wrapper(getattr(self.compiled, "source_code", "") or "")
        if self._code is None or _torch_compat.generated_globals(self.compiled) is None:
            return "no arena: the generated code has no Python wrapper"
        plan = plan_program(
            program,
            {line: a.name for line, a in self._code.allocations.items()},
            self._code.unsafe,
            **({"min_lease": 1} if self.wanted else {}),
        )
        return plan if plan.sites else "no arena: the generated code allocates nothing"

    def _trial(self, program: AllocationProgram, plan: ArenaPlan, use: Use) -> BoxedCall:
        """Runs plainly, counts page faults, then decides for good."""
        plain, faults, left = self.plain, [0], itertools.count(TRIAL_CALLS - 1, -1)
        count, now, times = _torch_compat.minor_page_faults, time.perf_counter_ns, []

        def call(inputs: list[Any]) -> Any:
            before, start = count(), now()
            out = plain(inputs)
            times.append(now() - start)
            faults[0] += count() - before
            if next(left) == 0:
                use(self._decide(program, plan, use, faults[0] / TRIAL_CALLS, min(times)))
            return out

        return call

    def _decide(
        self, program: AllocationProgram, plan: ArenaPlan, use: Use, faults: float, took: int
    ) -> BoxedCall:
        """``faults`` is the mean over the trial, ``took`` its shortest call, nanoseconds."""
        try:
            # Operators that allocate for themselves go on having their share.
            share = plan.large_bytes / (plan.large_bytes + sum(plan.left_out.values()))
            avoidable = min(faults * share, plan.large_bytes / PAGE)
            saved = avoidable * nanoseconds_per_fault()
            leases = sum(s.offset is None for s in plan.sites)
            cost = _COST_OF_CALL + leases * _COST_OF_LEASE
            if saved >= 2 * cost:
                return self._replay(program, plan, use, "a call has many page faults")
            if plan.large_bytes >= SURELY_LARGE and cost * NEGLIGIBLE <= took:
                return self._replay(program, plan, use, "it costs nothing beside such a call")
            self._skip("a call has too few page faults for an arena to save anything")
        except Exception as error:
            self.ledger.fallback(self.record.id, "moving a graph into an arena", error)
        return self.plain

    # ---- replaying

    def _replay(self, program: AllocationProgram, plan: ArenaPlan, use: Use, why: str) -> BoxedCall:
        code, module_globals = self._code, _torch_compat.generated_globals(self.compiled)
        assert code is not None
        assert module_globals is not None
        shapes = {
            line: TensorShape.of(*arguments)
            for line, arguments in evaluate(code, module_globals, self.sizes, program.key).items()
        }
        sites = [s for s in plan.sites if s.line in shapes and shapes[s.line].nbytes == s.nbytes]
        if not sites:
            self._skip("no arena: sizes depend on more than the graph's inputs")
            return self.plain
        scratch = [(s, s.offset) for s in sites if s.offset is not None]
        if plan.scratch_bytes < LARGE and not self.wanted:
            scratch = []  # malloc is as fast as all that a scratch needs
        scratch_bytes, least = (plan.scratch_bytes, plan.lower_bound) if scratch else (0, 0)
        leased = [s for s in sites if s.offset is None]
        label = self.record.label
        clone = rewritten(
            code,
            self.record.code_path or module_globals.get("__file__", "<generated>"),
            module_globals,
            [s.line for s, _ in scratch],
            {s.line: LeasedTensors(POOL, shapes[s.line], f"{label}: {s.name}") for s in leased},
        )
        compiled = self.compiled

        replays = Counter()
        tick = replays.tick

        def bound(tensors: Sequence[torch.Tensor]) -> BoxedCall:
            def replay(inputs: list[Any]) -> Any:
                tick()
                return clone(inputs, tensors)

            return _torch_compat.realign_inputs(replay, compiled)

        call = (
            _with_scratch(
                ScratchPlan(plan.scratch_bytes, [(o, shapes[s.line]) for s, o in scratch], bound),
                functools.partial(self._lost, program, use),
                self.plain,
            )
            if scratch
            else bound(())
        )
        POOL.add_user(call)
        if scratch:
            used = replace(plan, sites=tuple(s for s, _ in scratch))
            keep(self.record, placement_of_plan(self.record.id, program, used))
        outside = sum(plan.left_out.values())
        self.ledger.add(
            LedgerKind.RECORD,
            self.record.id,
            f"planned into an arena ({why}): {len(scratch)} temporaries in {scratch_bytes} bytes "
            f"(no plan can do with fewer than {least}), {len(leased)} outputs in blocks of "
            f"{sum(s.nbytes for s in leased)} bytes; {outside} bytes a call are allocated outside "
            "of it",
            tree=_detail(self.record.label, program, scratch_bytes),
        )
        sizes = f" with sizes {', '.join(map(str, program.key))}" if program.key else ""
        self.ledger.count(
            LedgerKind.REPLAY,
            self.record.id,
            f"ran in the arena{sizes}",
            replays,
            functools.partial(_detail, self.record.label, program),
        )
        return call

    def _lost(self, program: AllocationProgram, use: Use) -> None:
        self.ledger.add(
            LedgerKind.TREE_FAILURE,
            self.record.id,
            "somebody keeps a temporary of this graph beyond its call; it runs without an "
            "arena from here on",
            tree=_detail(self.record.label, program),
        )
        use(self.plain)

    def _skip(self, reason: str) -> None:
        self.ledger.add(LedgerKind.NOT_GRAPHED, self.record.id, reason)


def _detail(label: str, program: AllocationProgram, marginal: int = 0) -> TreeDetail:
    return TreeDetail(
        device="cpu",
        function=label,
        key=program.key,
        pool_after=POOL.reserved_bytes,
        marginal=marginal,
    )


def _with_scratch(
    plan: ScratchPlan[BoxedCall], lost: Callable[[], None], plain: BoxedCall
) -> BoxedCall:
    """The call in the steady state of a graph with temporaries."""
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


_price: list[float] = []


def nanoseconds_per_fault() -> float:
    """What one minor page fault costs here, measured once on 2 MiB."""
    if not _price:
        faults, now = _torch_compat.minor_page_faults, time.perf_counter_ns
        found = []
        nbytes = 2 << 20  # too small for huge pages
        for _ in range(3):
            view = LeasePool().lease(nbytes, Tokens(1))
            assert view is not None
            # No tensor: a profiler that runs would take it for the program's.
            memory = (ctypes.c_char * nbytes).from_buffer(view)
            count, start = faults(), now()
            ctypes.memset(memory, 0, nbytes)
            count, first = faults() - count, now() - start
            start = now()
            ctypes.memset(memory, 0, nbytes)
            found.append((first - (now() - start)) / max(1, count))
        _price.append(max(0.0, min(found)))
    return _price[0]


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


@on_reset
def reset() -> None:
    """Give free memory back; calls that come later start again."""
    POOL.trim()

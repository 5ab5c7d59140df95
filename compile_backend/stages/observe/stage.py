"""The observe stage: the first calls of a graph run instrumented, later ones cost one record.

Note [Three lives of a callable]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
*Observing*: the call runs the instrumented clone and yields a program. *Steady*: it runs
Inductor's own callable between two readings of the clock and appends one tuple to the call log.
*Plain*: the observation failed; the callable is still counted, but has no program.

A graph with symbolic sizes has one program per combination of them, so its callable looks the
combination up, and observes when it is a new one. The sizes are integer inputs of
the graph, or, where one is not (the inner tensors of a jagged one), read off a tensor.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch

from memprof.profiler.model import AllocationProgram, GraphRecord, LedgerKind, Origin
from memprof.profiler.support.counter import Counter as Ticks

from ... import _torch_compat as compat
from ...options import Options
from ...session.runtime import RUNTIME, LiveGraph
from ..graphs import ObservableModel, running
from ..kernel_marks import run_marked
from ..pipeline import CompileStage
from ..provenance.generated_code import Clone, clone_factory, partition_functions
from .program_builder import build_program, categorizer
from .recorder import CallRecorder

BoxedCall = Callable[[list[Any]], Any]

UNOBSERVED = -1
"""Program index of a call that has no program."""

_WHY_FRUITLESS = (
    "its graphs were replayed, or a warm-up failed, in each call that was to be observed"
)
MAX_FRUITLESS_CALLS = 3
"""Calls of a graph in the trees that may show nothing before it is given up."""


@dataclass(frozen=True, slots=True)
class SizeInputs:
    """Inputs of a graph that the symbolic sizes of a call can be read off.

    Attributes:
        integers: indices of inputs that are sizes themselves.
        dims: (input, dimension) of sizes that no such input gives.
    """

    integers: tuple[int, ...] = ()
    dims: tuple[tuple[int, int], ...] = ()


def size_inputs(args: Sequence[Any]) -> SizeInputs:
    """The inputs to read sizes off, among the fake tensors and symbolic integers that a graph is
    traced with. The ragged size of a jagged tensor is no number: it differs for each tensor, of
    whatever sizes."""
    sizes = tuple(
        i
        for i, a in enumerate(args)
        if isinstance(a, int) or (isinstance(a, torch.SymInt) and not compat.is_nested_size(a))
    )
    given_symbols = {symbol for i in sizes for symbol in compat.size_symbols(args[i])}
    dims = []
    for i, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            for d, size in enumerate(a.shape):
                symbols = compat.size_symbols(size)
                if not symbols <= given_symbols:
                    given_symbols |= symbols
                    dims.append((i, d))
    return SizeInputs(sizes, tuple(dims))


@dataclass(eq=False, repr=False)
class ObserveStage(CompileStage):
    """Wraps the callable of one compiled graph.

    Args:
        graph: whose calls are counted and whose record gets the programs.
        options: how many calls to observe.
        sizes: which of its inputs the sizes of a call can be read off.
        models: where the callable may run in graph trees: what they run, complete when it is
            compiled. Its first call, which is their warm-up and tunes the kernels, goes by
            unobserved; one clean observation follows it. None where there are no trees.
    """

    graph: LiveGraph
    options: Options
    sizes: SizeInputs
    models: list[ObservableModel] | None = None
    name = "observe"

    def post_compile(self, compiled: Any) -> Any:
        """Replace the callable inside ``compiled``, or wrap it if it is a bare function."""
        if hasattr(compiled, "current_callable"):
            in_parts = self.models is not None and compat.runs_in_parts(compiled)
            if in_parts:
                from memprof.cudagraph_trees import tell_what_is_given

            def install(call: BoxedCall) -> None:
                compiled.current_callable = tell_what_is_given(call) if in_parts else call

            _ObservedCall(self, compiled.current_callable, compiled, install)
            return compiled
        current: BoxedCall = compiled

        def change(call: BoxedCall) -> None:
            nonlocal current
            current = call

        # A real function, not an object: torch._dynamo.disable copies its attributes.
        def call(inputs: list[Any]) -> Any:
            return current(inputs)

        _ObservedCall(self, compiled, None, change)
        call._boxed_call = True  # type: ignore[attr-defined]
        return call


def _is_lasting(program: AllocationProgram) -> bool:
    """Tells whether an observed call allocated what the names of its code say and no more, so that
    no later call allocates anything else."""
    scratch = any(s.origin is Origin.INTERNAL for s in program.storages)
    return program.internal_observed and not program.kept_bytes and not scratch


class _ObservedCall:
    """The changing callable of one graph, see Note [Three lives of a callable]; ``install`` gets
    the first one and, as it changes, later ones."""

    def __init__(
        self,
        stage: ObserveStage,
        plain: BoxedCall,
        compiled: Any,
        install: Callable[[BoxedCall], None],
    ) -> None:
        self.record: GraphRecord = stage.graph.record
        self.tick = stage.graph.calls.tick
        self.options = stage.options
        self.plain = plain
        self.compiled = compiled
        self.module_globals = compat.generated_globals(compiled) or {}
        self.partitions = partition_functions(self.module_globals)
        self.sizes = stage.sizes.integers
        self.dims = stage.sizes.dims
        self.dynamic = bool(self.sizes or self.dims)
        # By key, what calls that are observed no more run.
        self.after_observation: dict[tuple[int, ...], BoxedCall] = {}
        # How many calls with a key were observed; -1 before the warm-up of the trees.
        self.seen: dict[tuple[int, ...], int] = {}
        self._fruitless: Counter[tuple[int, ...]] = Counter()
        in_trees = stage.models is not None
        self._unseen = -1 if in_trees and not compat.skips_warm_up() else 0
        runs = stage.options.observe_runs
        self._runs = min(runs, 1) if in_trees else runs
        # Trees know sizes by integer inputs alone: where a size is none, they may replay a graph
        # for another one, and the call is observed beside them.
        self._models = [] if self.dims else self._models_of(stage.models or ())
        self._unobserved = self._steady(UNOBSERVED)
        self._beyond: Ticks | None = None
        self._graph = stage.graph
        self._clone: Callable[[Any], Clone] | None = None
        if stage.options.annotate_kernels and compat.can_mark_kernels():
            self._mark_kernels()
        self._observing = threading.Lock()
        self._install = install
        for option in ("observe_runs", "max_programs"):
            if not getattr(self.options, option):
                self.record.unobservable = f"observation is off ({option}=0)"
                install(self._unobserved)
                return
        install(self._by_sizes() if self.dynamic else lambda inputs: self._observe(inputs, ()))

    # --- steady ---------------------------------------------------------------------------

    def _steady(self, program: int) -> BoxedCall:
        """The plain callable and one record a call: all that is left on the hot path."""
        run, calls, tick, graph = self.plain, RUNTIME.calls, self.tick, self.record.id

        def call(inputs: list[Any]) -> Any:
            start = perf_counter_ns()
            out = run(inputs)
            tick()
            calls.record((graph, program, start, perf_counter_ns(), get_ident()))
            return out

        return call

    def _by_sizes(self) -> BoxedCall:
        """Steady for known combinations of sizes, observing for new ones."""
        sizes, dims, observed = self.sizes, self.dims, self.after_observation

        def call(inputs: list[Any]) -> Any:
            key = tuple([inputs[i] for i in sizes])
            if dims:
                key += tuple([inputs[i].size(d) for i, d in dims])
            steady = observed.get(key)
            return self._observe(inputs, key) if steady is None else steady(inputs)

        return call

    # --- observing ------------------------------------------------------------------------

    def _observe(self, inputs: list[Any], key: tuple[int, ...]) -> Any:
        seen = self.seen.get(key)
        if seen is None and len(self.seen) >= self.options.max_programs:
            return self._call_beyond(inputs)
        if seen is None:
            self.seen[key] = seen = self._unseen
        if seen < 0:
            self.seen[key] = 0
            with running(self._models, [None] * len(self._models)):
                return self._unobserved(inputs)
        if not self._observing.acquire(blocking=False):
            return self._unobserved(inputs)  # another thread is at it
        try:
            steady = self.after_observation.get(key)
            if steady is not None:  # another thread has just been
                return steady(inputs)
            return self._observed(inputs, key)
        finally:
            self._observing.release()

    def _call_beyond(self, inputs: list[Any]) -> Any:
        """Run a call whose combination of sizes is one too many. Nothing is kept for it: of sizes
        that never come again there is no end."""
        if self._beyond is None:
            self._beyond = Ticks()
            why = f"more than {self.options.max_programs} combinations of sizes"
            RUNTIME.ledger.count(LedgerKind.NOT_OBSERVED, self.record.id, why, self._beyond)
        self._beyond.tick()
        return self._unobserved(inputs)

    def _observed(self, inputs: list[Any], key: tuple[int, ...]) -> Any:
        try:
            recorder = CallRecorder(RUNTIME.identities, key)
            call, copies = self._observable(recorder)
            names = [v.name for v in self.record.inputs]
            constants = {n: v for n, v in self.module_globals.items() if type(v) is torch.Tensor}
        except Exception as error:
            RUNTIME.ledger.fallback(self.record.id, "preparing an observation", error)
            self._give_up(key, f"preparing its observation failed: {error}")
            return self._unobserved(inputs)
        start = perf_counter_ns()
        with running(self._models, copies) as armed:
            out = recorder.run(call, inputs, names, constants)
        end = perf_counter_ns()
        program = UNOBSERVED
        try:
            if all(once.runs == 1 for once in armed):
                program = self._keep(recorder, key)
            else:
                self._fruitless[key] += 1
                if self._fruitless[key] == MAX_FRUITLESS_CALLS:
                    self._give_up(key, _WHY_FRUITLESS)
        except Exception as error:
            RUNTIME.ledger.fallback(self.record.id, "observing a call", error)
            self._give_up(key, f"its observation failed: {error}")
        self.tick()
        RUNTIME.calls.record((self.record.id, program, start, end, get_ident()))
        return out

    def _keep(self, recorder: CallRecorder, key: tuple[int, ...]) -> int:
        """Build the program; the last observation of a key replaces those before."""
        if recorder.error is not None:
            raise recorder.error
        program = build_program(
            recorder.trace, categorizer(self.record.inputs, self.record.outputs)
        )
        programs = self.record.programs
        index = next((i for i, p in enumerate(programs) if p.key == key), len(programs))
        programs[index : index + 1] = [program]
        RUNTIME.note_persistent(self.record, program)
        self.seen[key] += 1
        lasting = _is_lasting(program) and not self.record.data_dependent
        if self.seen[key] >= self._runs or lasting:
            self._stop_observing(key, index)
            what = f"for sizes {', '.join(map(str, key))}" if key else "its first calls"
            RUNTIME.ledger.add(LedgerKind.OBSERVED, self.record.id, what)
        return index

    def _stop_observing(self, key: tuple[int, ...], program: int) -> None:
        """Stop observing calls with ``key``: each is recorded with the index ``program``."""
        if self.record.data_dependent is not None:
            program = UNOBSERVED
        if not self.dynamic:
            self._clone = None
            self._graph.instrumented = None
        self.after_observation[key] = steady = self._steady(program)
        if not self.dynamic:
            self._install(steady)

    def _give_up(self, key: tuple[int, ...], why: str) -> None:
        RUNTIME.ledger.add(LedgerKind.NOT_OBSERVED, self.record.id, why)
        if not self.record.programs:
            self.record.unobservable = why
        self._stop_observing(key, UNOBSERVED)

    def _models_of(self, models: Sequence[ObservableModel]) -> list[ObservableModel]:
        """Those of ``models`` that run: a graph compiled again, past a cache, was handed to
        the trees twice."""
        return [m for m in models if m.model in self.partitions] or list(models[-1:])

    def _mark_kernels(self) -> None:
        """Have captures run copies of the code that mark kernels: Note [Kernels of a graph in a
        trace]."""
        code = self._graph.instrumented
        if code is None or not self.module_globals:
            return
        clone = clone_factory(code, self.module_globals)
        own = self.partitions
        for m in self._models:
            position = own.index(m.model) if m.model in own else None
            m.marked = functools.partial(run_marked, clone, position, self.record)

    def _observable(self, recorder: CallRecorder) -> tuple[BoxedCall, list[BoxedCall]]:
        """The callable to observe, and what the trees are to run in it, by model. Without a Python
        wrapper there is nothing to instrument: the allocator's events alone give the bytes."""
        code = self._graph.instrumented
        if self._clone is None and self.module_globals and code is not None:
            self._clone = clone_factory(code, self.module_globals)

        # What the trees allocate around the copy of a partition is not the graph's.
        def inside(run: BoxedCall, inputs: list[Any]) -> Any:
            try:
                return run(inputs)
            finally:
                recorder.exclude()

        def outside(run: BoxedCall, inputs: list[Any]) -> Any:
            recorder.exclude()
            return run(inputs)

        if self._clone is None:
            if self.compiled is not None:
                self.record.unobservable = "the generated code has no Python wrapper to observe"
            return self.plain, [m.model for m in self._models]
        clone = self._clone(recorder)
        mutated = self.record.description.mutated
        if not self._models:
            return compat.realign_inputs(clone.call, self.compiled, mutated), []
        copies: list[BoxedCall] = [
            functools.partial(inside, clone.partitions[self.partitions.index(m.model)])
            for m in self._models
            if m.model in self.partitions
        ]
        if copies:
            runs = [functools.partial(outside, r) for r in compat.runner_partitions(self.compiled)]
            return compat.realign_inputs(clone.bind(runs), self.compiled, mutated), copies
        copies = [functools.partial(inside, clone.call)]
        return functools.partial(outside, self.plain), copies

"""Follows one step of a program on the simulated device: what its streams were given, joined with
the operations of torch that gave it.

Operations come from Kineto, which knows their tensors and names each to CUPTI as it begins: Note
[The log of work] in ``simulated_cuda/src/core_log.cpp``. What a CUDA graph holds was given when it
was captured, so that captures are followed as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from memprof.profiler.support.process_hooks import collector_paused
from memprof.simulated_cuda import control

from . import _torch_compat
from .communication import Collectives
from .compiled_lines import CompiledLines
from .micro_batches import MicroBatches
from .modules import ModuleRanges
from .timeline import Given, RecordedStep
from .work import COPY, OTHER, SET, Operation, Work, of_operation, of_product

_PROFILES_ITSELF = "the program runs torch's profiler itself"


class Recording:
    """Follows captures from ``install`` on, and a step between ``begin`` and ``end``.

    Attributes:
        problem: why not all was followed, in words; empty if it was.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._modules = ModuleRanges()
        self._lines = CompiledLines()
        self._micro_batches = MicroBatches(self._rest)
        self._collectives: Collectives | None = None
        self._starting = False
        self._operations: dict[int, Operation] = {}
        self._sessions = 0
        self._profiler: Any = None

    def install(self) -> None:
        """Follow what is captured from now on."""
        self._lines.install()
        self._micro_batches.install()
        _torch_compat.around_captures(self._begin_capture, self._end_capture)
        _torch_compat.before_profilers(lambda: self._give_way(_PROFILES_ITSELF))
        _torch_compat.before_swaps(lambda: self._give_way("the program swaps tensors"))

    def follow_collectives(self) -> None:
        """Follow those of this rank's as well, the others of its job not being there."""
        self._collectives = Collectives()
        self._collectives.install()

    def begin(self) -> bool:
        """Begin a step; false where the program profiles itself, so that it cannot be followed."""
        if not self._begin_profiler():
            self.problem = _PROFILES_ITSELF
            return False
        self._modules.begin()
        self._micro_batches.next_step(follows=True)
        self._log(True)
        return True

    def pass_step(self) -> None:
        """Let a step go by that is not followed, but for what it launches."""
        self._micro_batches.next_step(follows=False)
        control.log(True)

    def _log(self, on: bool) -> None:
        control.log(on)
        if self._collectives is not None:
            self._collectives.on = on
            self.problem = self.problem or self._collectives.problem

    def end(self) -> RecordedStep | None:
        """End the step; None if the program began to profile itself in it."""
        self._log(False)
        self._micro_batches.next_step(follows=False)
        self._modules.end()
        if self._profiler is None:
            return None
        # What it makes is kept; collections on the way would look at all of it, again and again.
        with collector_paused():
            self._end_profiler()
            step = self._joined(control.logged())
            self._operations.clear()  # Tens of thousands, which later searches would look at.
            return step

    def _rest(self, rests: bool) -> None:
        if rests and self._profiler is None:
            return  # The program's own may run.
        self._lines.on = self._profiler is not None and not rests
        _torch_compat.let_rest(rests)

    # A program's capture is worth more than its time.
    def _begin_capture(self) -> bool:
        try:
            return self._begin_profiler()
        except Exception as e:
            self.problem = repr(e)
            return False

    def _end_capture(self) -> None:
        try:
            # What is not described has weak references to its inputs (``before_swaps``).
            for operation in self._end_profiler():
                _torch_compat.describe(operation)
        except Exception as e:
            self.problem = repr(e)

    def _begin_profiler(self) -> bool:
        if self._profiler is not None:
            return False
        self._sessions += 1
        control.number_operations(self._sessions << 40)
        self._starting = True
        try:
            self._profiler = _torch_compat.start_profiler()
        finally:
            self._starting = False
        self._lines.on = self._profiler is not None
        return self._lines.on

    def _end_profiler(self) -> Collection[Operation]:
        """Keep the operations of the session that ends, and return them."""
        self._lines.on = False
        if self._profiler is None:
            return ()
        profiler, self._profiler = self._profiler, None
        recorded = _torch_compat.stop_profiler(profiler)
        formulas = _torch_compat.flop_formulas()
        found = _torch_compat.operations(recorded, self._sessions << 40, formulas)
        self._operations |= found
        return found.values()

    # Kineto has one session: whoever ends it ends the other's as well, whose own end then crashes.
    def _give_way(self, problem: str) -> None:
        if self._starting or self._profiler is None:
            return
        self.problem = problem
        self._profiler = None
        self._rest(False)  # The program's own shall follow all.
        try:
            _torch_compat.drop_profiler()
        except Exception as e:
            self.problem = repr(e)

    def _joined(self, logged: list[control.Logged]) -> RecordedStep:
        launched: dict[int, Operation] = {}
        for record in logged:
            operation = self._operations.get(record.operation)
            if operation is not None and record.kind == control.KERNEL and not record.batches:
                launched[id(operation)] = operation
                operation.launches += 1
        works = {}
        formulas = _torch_compat.flop_formulas()
        for number, operation in launched.items():
            _torch_compat.describe(operation)
            module = operation.module if self._modules.whole else ""
            works[number] = replace(of_operation(operation, formulas), module=module)
        given, launches, graphs, unknown, inside = [], 0, 0, 0, 0
        found = [(record, self._work_of(record, works)) for record in logged]
        for record, work in self._micro_batches.completed(found, self._operations):
            if record.kind == control.KERNEL and work is None:
                unknown += 1
                work = Work(OTHER)
            launches += inside == 0 and record.kind < control.EVENT
            inside = max(0, inside - 1)
            if record.kind == control.GRAPH:
                graphs += 1
                inside = record.m
            unknown += work is not None and work.in_part
            nodes = record.m if record.kind == control.GRAPH else 0
            given.append(Given(record.kind, record.stream, record.subject, work, nodes))
            if record.kind == control.EVENT and self._collectives is not None:
                given += self._collectives.given(record)
        after: dict[int, list[int]] = {}
        for node, before in control.edges():
            after.setdefault(node, []).append(before)
        return RecordedStep(given, after, launches + graphs, graphs, unknown)

    def _work_of(self, record: control.Logged, works: dict[int, Work]) -> Work | None:
        operation = self._operations.get(record.operation)
        module = operation.module if operation is not None and self._modules.whole else ""
        if record.kind == control.COPY:
            if record.type == control.ON_DEVICE:
                return Work(SET, nbytes=2 * record.bytes, pattern="copy", module=module)
            way = "to device" if record.type == control.TO_DEVICE else "to host"
            return Work(COPY, nbytes=record.bytes, way=way, module=module)
        if record.kind == control.SET:
            return Work(SET, nbytes=record.bytes, pattern="copy", module=module)
        if record.kind != control.KERNEL:
            return None
        if record.batches:
            product = of_product(record.type, record.m, record.n, record.k, record.batches)
            return replace(product, module=module)
        if operation is None:
            return None
        work = works[id(operation)]
        share = operation.launches
        if share <= 1:
            return work
        return replace(work, flops=work.flops // share, nbytes=work.nbytes // share)

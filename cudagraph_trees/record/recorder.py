"""Calls that are no replays: warming up, recording, running without a graph.

Note [Failures]
~~~~~~~~~~~~~~~
A warm-up or a recording that raises must not cost the user's call. After it, the state is
RECORDING if there is a path: the books were restored before the attempt, they are right
and the outputs own their blocks. The call is made again through the plain callable, from inputs
that ``recovery`` kept; after want of memory with a graph first, see Note [Running out of memory].
If that raises too, the error is the program's own and goes to the user. So does at once what is no
``Exception``: an interrupt is not to be followed by another run; and any error if the user has
asked for graphs or errors (``cudagraph_or_error``), want of memory if it comes twice.

A function that writes to more than can be copied (a cache of keys and values, an optimizer's
state) could not be called again after a failed warm-up. It is warmed up in the general pool.

Note [Whoever holds an error]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An error that goes to the user must not hold itself: what the frames of its traceback hold, tensors
of the pool and saved activations, would wait for a garbage collector, and a program that has run
out of memory and goes on with half the batch needs them now. So no frame of its traceback has it
when it leaves, and no other error is raised while it is handled.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch

from memprof.profiler.model import LedgerKind
from memprof.profiler.support.thread_activity import activity

from .. import _torch_compat as compat
from ..device.capture_lock import capturing
from ..device.protocol import Input, Output
from ..explain.ledger import count_fallback, measure
from ..replay.errors import UntrackedMemory, ran_out_of_memory, why_it_failed
from ..replay.node import Node, number_of, path_addresses
from ..replay.spec import CompilationMode, FunctionSpec, Why
from ..steps.step_end import ParameterRefs
from .capture import capture_node, warm_up_node
from .policy import RecordPolicy
from .pool_owner import PoolOwner
from .random_state import RandomStates
from .recovery import InputBackup, too_much_to_copy

_WHAT_TO_DO = (
    "What to do: if memory ran out, make the batch smaller, or leave CUDA graphs off for this "
    'model (options={"graphs": False} of memprof\'s backend, or another mode than '
    '"reduce-overhead"); otherwise the error above is the program\'s own'
)

_Run: TypeAlias = Callable[[FunctionSpec, list[Input], InputBackup], list[Output]]
"""Warms a call up, or records it. It empties the inputs."""


class GraphRecorder:
    """Makes the calls of one manager that are no replays. All of them empty ``inputs``.

    Attributes:
        active_warm_up: the function that is being warmed up now.
    """

    def __init__(self, owner: PoolOwner, policy: RecordPolicy, parameters: ParameterRefs) -> None:
        self._owner = owner
        self._path = owner.path
        self._policy = policy
        self._ledger = owner.ledger
        self._parameters = parameters
        self._random_states = RandomStates(owner.path)
        self._warm_up_numbers = itertools.count(-1, -1)
        self._recording_numbers = itertools.count()
        self.active_warm_up: FunctionSpec | None = None

    # ---- warming up

    def warm_up(self, function: FunctionSpec, inputs: list[Input]) -> list[Output]:
        """Run once without recording.

        Raises:
            UntrackedMemory: it has kept memory of the pool, and ``cudagraph_or_error`` is on.
            Exception: the program's own, or see Note [Calling again after a failure].
        """
        if written := too_much_to_copy(function, inputs):
            reason = f"in the general pool: it writes to {written} bytes of its inputs"
            self._ledger.add(LedgerKind.WARM_UP, function, reason)
            with self._warming_up(function):
                why = Why(reason, this_once=True, in_ledger=True)
                return self.run_plainly(function, inputs, why)

        def backup() -> InputBackup:
            above = path_addresses(self._path.node)
            return InputBackup.warm_up(function, inputs, above, self._owner.pool.device)

        with capturing():
            self._owner.restore_books(function)
            self._random_states.to_host(function, inputs)
            compat.align_inputs(inputs, function.alignment_checked)
            self._path.begin_run()
            return self._run_in_pool("warm-up", function, inputs, backup, self._warm_up)

    @contextmanager
    def _warming_up(self, function: FunctionSpec) -> Iterator[None]:
        """Within it ``function`` is warmed up: it may be recorded from then on, unless that fails,
        or the program says that once is not enough."""
        state, names = function.state, (function.compile_id, function.label)
        if state.warm_ups:
            compat.graphs_log.debug("[%s] Running eager function=%s", *names)
        else:
            mode = function.mode.name
            compat.graphs_log.debug("[%s] Running warmup function=%s, mode=%s", *names, mode)
        state.warmed_up = True
        self.active_warm_up = function
        try:
            yield
        except BaseException:
            state.warmed_up = False
            raise
        finally:
            self.active_warm_up = None
        state.warm_ups += 1

    def _warm_up(
        self, function: FunctionSpec, inputs: list[Input], backup: InputBackup
    ) -> list[Output]:
        path, owner, state = self._path, self._owner, function.state
        parent, pool, measured = path.node, owner.pool, measure(owner.pool)
        number = next(self._warm_up_numbers)
        reason = "first run"
        if state.warm_ups:
            before = "a warm-up came before it"
            reason = before if state.warmed_up else "the one before was not to be the last"
        with (
            self._warming_up(function),
            self._history(function),
            activity(f"warming up {function.label}", pool.handle),
        ):
            node, outputs = warm_up_node(function, inputs, number, path.step, parent, pool)
            # What it says of memory must be asked for while the allocator keeps lines.
            kept = owner.memory_kept(function, node)
        owner.warmed_up = True
        self._ran(node, backup)
        where = {"node": number, "parent": number_of(parent)}
        self._ledger.add(LedgerKind.WARM_UP, function, reason, **where, **measured())
        self._random_states.ran(function, outputs, pool.device)
        if kept:
            self._refuse_kept_memory(function, kept)
        elif function.mode is CompilationMode.BACKWARD:
            owner.leave_room_for_state()
        return outputs

    def _refuse_kept_memory(self, function: FunctionSpec, kept: str) -> None:
        """The warm-up of ``function`` has kept memory of the pool: see Note [Memory that a function
        keeps]."""
        function.state.warmed_up = False
        function.state.count_failure()
        reason = f"warm-up kept memory: {' '.join(kept.split())}"
        self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
        self._owner.give_back_damaged()
        if function.options.or_error:
            raise UntrackedMemory(kept)
        compat.log.warning("%s: %s", function.label, reason)

    def mark_warmup_incomplete(self) -> None:
        """Warm the function up once more that is being warmed up now."""
        if self.active_warm_up is not None:
            self.active_warm_up.state.warmed_up = False

    # ---- recording

    def record(self, function: FunctionSpec, inputs: list[Input], why: Why) -> list[Output]:
        """Record the call, and run the recording: ``why`` is for the ledger."""

        def backup() -> InputBackup:
            above = path_addresses(self._path.node)
            return InputBackup.recording(function, inputs, above, self._owner.pool)

        record = functools.partial(self._record, why)
        with capturing(), compat.recording_callbacks(function.compile_id):
            self._owner.restore_books(function)
            self._path.begin_run()
            self._parameters.remember(function, inputs)
            return self._run_in_pool("recording", function, inputs, backup, record)

    def _record(
        self, why: Why, function: FunctionSpec, inputs: list[Input], backup: InputBackup
    ) -> list[Output]:
        path, owner = self._path, self._owner
        parent, pool, measured = path.node, owner.pool, measure(owner.pool)
        torch.cuda.synchronize(owner.device)
        number = next(self._recording_numbers)
        if compat.graphs_log.isEnabledFor(logging.DEBUG):
            compat.graphs_log.debug(
                "[%s] Recording function=%s, mode=%s, cuda_graph_id=%d, inputs: %s",
                function.compile_id,
                function.label,
                function.mode.name,
                number,
                compat.describe_inputs(inputs),
            )
        backward = function.mode is CompilationMode.BACKWARD
        timed = compat.timed("CUDAGraphNode.record", function.compile_id, backward=backward)
        what = f"recording {function.label} as a CUDA graph"
        with self._history(function), timed, activity(what, pool.handle):
            node, outputs = capture_node(
                function,
                inputs,
                number,
                path.step,
                parent,
                pool,
                demoted=function.state.places[number_of(parent)].demoted,
                copies=backup.buffers,
            )
        compat.count_copied_inputs(len(node.input_plan.copied))
        again = owner.tree.add(node)
        self._policy.moves.recorded(node)
        self._ran(node, backup)
        torch.cuda.synchronize(owner.device)
        detail = measured()
        node.marginal_bytes = detail["pool_after"] - detail["pool_before"]
        self._ledger.add(
            # One that was in the way may have been dropped meanwhile.
            LedgerKind.RERECORD if again or why.cause else LedgerKind.RECORD,
            function,
            why.reason,
            node=number,
            parent=number_of(parent),
            **detail,
            marginal=node.marginal_bytes,
            **why.cause,
        )
        for sentence in node.output_cache.disagreements:
            self._ledger.add(LedgerKind.COMPILED, function, sentence)
        # After the entry above, so that the ledger has its replays below it.
        node.recorded_ns = time.time_ns()
        return outputs

    def _ran(self, node: Node, backup: InputBackup) -> None:
        backup.succeeded()
        self._path.ran(node)
        self._policy.ran_with_graph(node.wrapped_function)

    def _history(self, function: FunctionSpec) -> AbstractContextManager[object]:
        """Within it the allocator keeps the lines that allocate, if somebody may want them."""
        failed = function.state.failures > 0
        wanted = failed or function.options["cudagraph_trees_history_recording"]
        return compat.allocator_history() if wanted else nullcontext()

    # ---- running without a graph

    def run_plainly(self, function: FunctionSpec, inputs: list[Input], why: Why) -> list[Output]:
        """Run without a graph, out of the general pool.

        Raises:
            RuntimeError: ``cudagraph_or_error`` is on, and it is not for this once.
            Exception: the program's own.
        """
        if function.options.or_error and not why.this_once:
            raise RuntimeError(
                f"{function.label} would run without a CUDA graph, and cudagraph_or_error is on: "
                f"{why.reason}"
            )
        self._random_states.to_host(function, inputs)
        if not why.in_ledger:
            self._ledger.add(LedgerKind.SKIP, function, why.reason, **why.cause)
        self._policy.ran_plainly(function)
        self._path.ran_without_graph()
        model = compat.with_aligned_inputs(
            function.model, function.alignment_checked, function.mutated
        )
        outputs = list(model(inputs))
        self._random_states.ran(function, outputs, self._owner.pool.device)
        return outputs

    # ---- failures

    def _run_in_pool(
        self,
        what: str,
        function: FunctionSpec,
        inputs: list[Input],
        backup: Callable[[], InputBackup],
        run: _Run,
    ) -> list[Output]:
        """Warm up or record, after want of memory once more, and then run without a graph: see
        Note [Failures]."""
        outputs = self._attempt(what, function, inputs, backup(), run)
        if outputs is None:
            outputs = self._attempt(what, function, inputs, backup(), run, last=True)
            assert outputs is not None
        return outputs

    def _attempt(
        self,
        what: str,
        function: FunctionSpec,
        inputs: list[Input],
        backup: InputBackup,
        run: _Run,
        *,
        last: bool = False,
    ) -> list[Output] | None:
        """Warm up or record. None if memory ran out and this was not the ``last`` time; then
        ``inputs`` are there again."""
        failed = True
        try:
            try:
                outputs = run(function, inputs, backup)
                failed = False
                return outputs
            except BaseException as error:
                short = ran_out_of_memory(error)
                why = self._recover(what, function, inputs, backup, error, again=short and not last)
            if why is None:
                return None
            return self._run_after_failure(function, inputs, why, short)
        finally:
            # Not before: inputs that died in the attempt may lie in memory of the old pool.
            if failed:
                self._replace_damaged_pool(function)

    def _recover(
        self,
        what: str,
        function: FunctionSpec,
        inputs: list[Input],
        backup: InputBackup,
        error: BaseException,
        *,
        again: bool,
    ) -> Why | None:
        """Put back what a failed warm-up or recording has read. Returns why the call is to run
        without a graph; None if it is to be tried ``again`` with one. Raises ``error`` if the user
        is to have it."""
        try:
            why = why_it_failed(error)
            reason = f"{what} failed: {why}"
            or_error = function.options.or_error
            if not isinstance(error, Exception):
                backup.give_up(error)
                raise error
            if or_error and not again:
                self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
                backup.give_up(error)
                raise error
            if lost := _put_back(inputs, backup, error):
                if not or_error:
                    function.state.count_failure()
                self._ledger.add(LedgerKind.TREE_FAILURE, function, f"{reason}; {lost}")
                _add_note(error, f"{what} of {function.label} failed", lost)
                raise error
            if again:
                torch.cuda.empty_cache()
                reason = f"{reason}; once more, without what the general pool did not use"
                self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
                return None
            self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
            # Not the exception: a log record lives on, and with it the frames of the failure.
            compat.log.warning(
                "%s of %s failed; it runs without a graph. %s", what, function.label, why
            )
            return Why(reason, in_ledger=True)
        finally:
            del error  # See Note [Whoever holds an error].

    def _run_after_failure(
        self, function: FunctionSpec, inputs: list[Input], why: Why, short_of_memory: bool
    ) -> list[Output]:
        count_fallback()
        if not short_of_memory:
            function.state.count_failure()
            self._owner.give_back_warm_ups()
            return self.run_plainly(function, inputs, why)
        # See Note [Running out of memory].
        self._owner.give_back(f"{function.label} does not fit beside what it holds")
        outputs = self.run_plainly(function, inputs, why)
        self._owner.stop(f"there is no memory for that of {function.label}")
        return outputs

    def _replace_damaged_pool(self, function: FunctionSpec) -> None:
        owner = self._owner
        try:
            if owner.pool.damaged:
                owner.give_back("a failed capture has spoilt the pool or the device's generator")
            elif owner.memory_kept(function, self._path.node):
                owner.give_back_damaged()
        except Exception as e:
            # The call has its results, or an error of its own. Next time it is tried again.
            owner.pool.damaged = True
            compat.log.warning("the pool could not be replaced: %s", f"{type(e).__name__}: {e}")


def _put_back(inputs: list[Input], backup: InputBackup, error: Exception) -> str:
    """Fill ``inputs`` as they were before the call that failed. Returns why that cannot be, ""
    if it can."""
    try:
        # The caller's list, which may be as full as it was, or not.
        inputs[:] = backup.call_again(error)
    except Exception as e:
        why = why_it_failed(e)
        return f"the call cannot be made again without a graph: {why}. {_WHAT_TO_DO}"
    finally:
        del error  # See Note [Whoever holds an error].
    return ""


def _add_note(error: Exception, what: str, lost: str) -> None:
    try:
        if hasattr(error, "add_note"):
            error.add_note(f"memprof: {lost}")
        else:  # Python 3.10
            compat.log.error("%s, and %s", what, lost)
    finally:
        del error  # See Note [Whoever holds an error].

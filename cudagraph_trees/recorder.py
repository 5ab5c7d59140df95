"""Calls that are no replays: warming up, recording, running without a graph.

Note [Failures]
~~~~~~~~~~~~~~~
A warm-up or a recording that raises must not cost the user's call. After it, the state is
RECORDING if there is a path: the books were restored before the attempt, they are right
and the outputs own their blocks. The call is made again through the plain callable, from inputs
that ``recovery`` kept. If that raises too, the error is the program's own and goes to the user. So
does at once what is no ``Exception``: an interrupt is not to be followed by another run; and any
error if the user has asked for graphs or errors (``cudagraph_or_error``), unless the call can be
made once more with a graph.

Note [Whoever holds an error]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
An error that goes to the user must not hold itself: what the frames of its traceback hold, tensors
of the pool and saved activations, would wait for a garbage collector, and a program that has run
out of memory and goes on with half the batch needs them now. So no frame of its traceback has it
when it leaves, and it is not raised while another error is handled, which would be its
``__context__``.

Note [Memory that a pool cannot reach]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
While a thread allocates from a pool, torch's allocator (2.11) gives nothing of the general pool
back to the device, not even segments that nobody uses. So what fits a device without graphs can
fail in a pool or beside one. Three things follow.

* A warm-up or a recording that has run out of memory is made once more, if the general pool has
  given something back in between.
* A function that writes to more than can be copied (a cache of keys and values, an optimizer's
  state) could not be called again after a failed warm-up. It is warmed up in the general pool,
  *apart*, and on a device that is nearly full the pool is given back before. A recording runs no
  kernel, so after one that failed it can always be called again.
* A function that was given up for want of memory runs without a graph on a device that is nearly
  full and in pieces, part of it in the pool of the others. If that fails in a call that writes to
  nothing and whose inputs are still there, the pool and the caches are given back, and the call is
  made once more. One that writes cannot be made once more, nor a backward, which may overwrite
  what was saved for it: before it the pool is given back if there is less memory than it has
  needed, which is learned in the first such call. Where that comes to nothing ``MAX_ROOMS`` times,
  nothing is recorded any more.
"""

from __future__ import annotations

import itertools
import logging
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from memprof.profiler.model import LedgerKind
from memprof.profiler.thread_activity import activity

from . import _torch_compat as compat
from .account.ledger import Measurement
from .account.placement import keep_placement
from .capture.recovery import InputBackup, Unrecoverable, too_much_to_copy
from .capture.run import capture_node, warm_up_node
from .capture_lock import capturing
from .device.protocol import Input, Model, Output
from .errors import UntrackedMemory, ran_out_of_memory, why_it_failed
from .moves import Moves
from .node import Node, number_of, path_addresses
from .pool_owner import PoolOwner
from .random_state import RandomStates
from .spec import CompilationMode, FunctionSpec, Why
from .step_end import ParameterRefs


class Recorder:
    """Makes the calls of one manager that are no replays. All of them empty ``inputs``.

    Attributes:
        active_warm_up: the function that is being warmed up now.
    """

    def __init__(self, owner: PoolOwner, moves: Moves, parameters: ParameterRefs) -> None:
        self._owner = owner
        self._path = owner.path
        self._policy = owner.policy
        self._ledger = owner.ledger
        self._moves = moves
        self._parameters = parameters
        self._random_states = RandomStates(owner.path)
        self._warm_up_numbers = itertools.count(-1, -1)
        self._recording_numbers = itertools.count()
        self.active_warm_up: FunctionSpec | None = None

    def warm_up(self, function: FunctionSpec, inputs: list[Input]) -> list[Output]:
        """Run once without recording: in the pool, or apart.

        Raises:
            UntrackedMemory: it has kept memory of the pool, and ``cudagraph_or_error`` is on.
            Exception: the program's own, or see Note [Calling again after a failure].
        """
        if written := too_much_to_copy(function, inputs):
            return self._warm_up_apart(function, inputs, written)
        if (outputs := self._warm_up(function, inputs)) is None:
            outputs = self._warm_up(function, inputs, last=True)
            assert outputs is not None
        return outputs

    def _warm_up_apart(
        self, function: FunctionSpec, inputs: list[Input], written: int
    ) -> list[Output]:
        """See Note [Memory that a pool cannot reach]. ``written`` bytes of inputs change."""
        state, device = function.state, self._owner.device
        reason = f"in the general pool: it writes to {written} bytes of its inputs"
        self._ledger.add(LedgerKind.WARM_UP, function, reason)
        # Before the path goes, which says what is one.
        self._random_states.to_host(function, inputs)
        self._owner.stand_aside(function)
        available = device.available_bytes()
        self._begin_warm_up(function)
        try:
            why = Why(reason, this_once=True, failed=True)
            outputs = self.run_plainly(function, inputs, why)
        except BaseException:
            state.warmed_up = False
            raise
        finally:
            self.active_warm_up = None
        state.warm_ups += 1
        state.needs = max(state.needs, available - device.unclaimed_bytes())
        return outputs

    def _begin_warm_up(self, function: FunctionSpec) -> None:
        names = (function.compile_id, function.label)
        if function.state.warm_ups:
            compat.graphs_log.debug("[%s] Running eager function=%s", *names)
        else:
            mode = function.mode.name
            compat.graphs_log.debug("[%s] Running warmup function=%s, mode=%s", *names, mode)
        # It may be recorded from here on, unless that fails, or says that once is not enough.
        function.state.warmed_up = True
        self.active_warm_up = function

    def _warm_up(
        self, function: FunctionSpec, inputs: list[Input], *, last: bool = False
    ) -> list[Output] | None:
        path, owner, state = self._path, self._owner, function.state
        with capturing():
            pool, measured = owner.pool, Measurement(owner.pool)
            owner.restore_books(function)
            self._random_states.to_host(function, inputs)
            compat.align_inputs(inputs, function.alignment_checked)
            parent = path.node
            if not last:
                path.begin_run()
            number = next(self._warm_up_numbers)
            backup = InputBackup.warm_up(function, inputs, path_addresses(parent), pool.device)
            reason = "first run"
            if state.warm_ups:
                reason = (
                    "a warm-up came before it"
                    if state.warmed_up
                    else "the one before was not to be the last"
                )
            self._begin_warm_up(function)
            try:
                with self._history(function), activity(f"warming up {function.label}", pool.handle):
                    node, outputs = warm_up_node(function, inputs, number, path.step, parent, pool)
                    # What it says of memory must be asked for while the allocator keeps lines.
                    kept = owner.memory_kept(function, node)
            except BaseException as e:
                state.warmed_up = False
                return self._failed(function, inputs, "warm-up", e, backup, measured, last)
            finally:
                self.active_warm_up = None
            self._ran(node, backup)
            where = {"node": number, "parent": number_of(parent)}
            self._ledger.add(LedgerKind.WARM_UP, function, reason, **where, **measured.detail())
            state.warm_ups += 1
            self._random_states.ran(function, outputs, pool.device)
            state.pool_growth += measured.grown()
            owner.check_budget(function)
            if function.mode is CompilationMode.BACKWARD:
                owner.leave_room_for_state(function)
            if kept:
                state.warmed_up = False
                state.failures += 1
                reason = f"warm-up kept memory: {' '.join(kept.split())}"
                self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
                owner.leave()
                if function.options.or_error:
                    raise UntrackedMemory(kept)
                compat.log.warning("%s: %s", function.label, reason)
            return outputs

    def record(self, function: FunctionSpec, inputs: list[Input], why: Why) -> list[Output]:
        if (outputs := self._record(function, inputs, why)) is None:
            outputs = self._record(function, inputs, why, last=True)
            assert outputs is not None
        return outputs

    def _record(
        self, function: FunctionSpec, inputs: list[Input], why: Why, *, last: bool = False
    ) -> list[Output] | None:
        path, owner, state = self._path, self._owner, function.state
        with capturing(), compat.recording_callbacks(function.compile_id):
            pool, measured = owner.pool, Measurement(owner.pool)
            owner.restore_books(function)
            parent = path.node
            if not last:
                path.begin_run()
            self._parameters.remember(function, inputs)
            backup = InputBackup.recording(function, inputs, path_addresses(parent), pool)
            owner.device.synchronize()
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
            try:
                what = f"recording {function.label} as a CUDA graph"
                with self._history(function), timed, activity(what, pool.handle):
                    node, outputs = capture_node(
                        function,
                        inputs,
                        number,
                        path.step,
                        parent,
                        pool,
                        demoted=state.places[number_of(parent)].demoted,
                        # Who has a record wants to know, and it costs milliseconds, once.
                        learn_program=owner.settings.programs or function.record is not None,
                        copies=backup.buffers,
                    )
            except BaseException as e:
                return self._failed(function, inputs, "recording", e, backup, measured, last)
            again = owner.tree.add(node)
            self._moves.recorded(node)
            self._ran(node, backup)
            owner.device.synchronize()
            node.marginal_bytes = measured.grown()
            state.pool_growth += node.marginal_bytes
            keep_placement(node)
            self._ledger.add(
                # One that was in the way may have been dropped meanwhile.
                LedgerKind.RERECORD if again or why.cause else LedgerKind.RECORD,
                function,
                why.reason,
                node=number,
                parent=number_of(parent),
                **measured.detail(),
                marginal=node.marginal_bytes,
                **why.cause,
            )
            # After the entry above, so that the ledger has its replays below it.
            node.recorded_ns = time.time_ns()
            owner.check_budget(function)
            return outputs

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
        # Before the path goes, which says what is one.
        self._random_states.to_host(function, inputs)
        self._owner.give_back_unneeded(function)
        if not why.failed:
            self._ledger.add(LedgerKind.SKIP, function, why.reason, **why.cause)
        self._policy.ran_plainly(function)
        self._path.ran_without_graph()
        mutated = function.mutated_input_idxs
        checked = function.alignment_checked
        compat.align_inputs(inputs, [i for i in checked if i not in mutated])
        written = [i for i in checked if i in mutated]
        run = compat.with_aligned_inputs(function.model, written, mutated)
        if not function.state.short_of_memory:
            outputs = list(run(inputs))
        elif mutated or function.mode is CompilationMode.BACKWARD:
            outputs = self._run_with_room(function, run, inputs)
        else:
            outputs = self._run_twice_if_it_must(function, run, inputs)
        self._random_states.ran(function, outputs, self._owner.pool.device)
        return outputs

    def _run_with_room(
        self, function: FunctionSpec, run: Model, inputs: list[Input]
    ) -> list[Output]:
        """Run what cannot be run twice, see Note [Memory that a pool cannot reach]."""
        device, state = self._owner.device, function.state
        if state.needs:
            fits = state.needs <= device.unclaimed_bytes()
            fits = fits or state.needs <= device.available_bytes()
            return list(run(inputs)) if fits else self._run_after_making_room(function, run, inputs)
        if not self._owner.make_room(function):
            # What is cached would be taken for what it needs.
            device.empty_cache()
        available = device.available_bytes()
        outputs = list(run(inputs))
        state.needs = max(1, available - device.unclaimed_bytes())
        return outputs

    def _run_twice_if_it_must(
        self, function: FunctionSpec, run: Model, inputs: list[Input]
    ) -> list[Output]:
        """Run what writes to nothing, see Note [Memory that a pool cannot reach]."""
        owner, node = self._owner, self._path.node
        path = [] if node is None else node.path_refs
        backup = InputBackup.plain(function, inputs, path, owner.pool.device)
        lost = False
        try:
            return list(run(inputs))
        except torch.OutOfMemoryError as e:
            try:
                inputs[:] = backup.call_again(e)
            except Unrecoverable:
                lost = True
            if lost:
                raise  # Not above, see Note [Whoever holds an error].
        return self._run_after_making_room(function, run, inputs, again=True)

    def _run_after_making_room(
        self, function: FunctionSpec, run: Model, inputs: list[Input], *, again: bool = False
    ) -> list[Output]:
        made = self._owner.make_room(function)
        if again and not made:  # else it may come at each call, and waits for the device
            self._owner.device.empty_cache()
        outputs = list(run(inputs))
        if made:
            self._owner.count_room(function)
        return outputs

    def mark_warmup_incomplete(self) -> None:
        """Warm the function up once more that is being warmed up now."""
        if self.active_warm_up is not None:
            self.active_warm_up.state.warmed_up = False

    def _ran(self, node: Node, backup: InputBackup) -> None:
        backup.succeeded()
        self._path.ran(node)
        self._policy.ran_with_graph(node.wrapped_function)
        node.wrapped_function.state.short_of_memory = False

    def _history(self, function: FunctionSpec) -> AbstractContextManager[object]:
        """Within it the allocator keeps the lines that allocate, if somebody may want them."""
        failed = function.state.failures > 0
        wanted = failed or function.options["cudagraph_trees_history_recording"]
        return self._owner.pool.observing() if wanted else nullcontext()

    # ---- failures

    def _failed(
        self,
        function: FunctionSpec,
        inputs: list[Input],
        what: str,
        error: BaseException,
        backup: InputBackup,
        measured: Measurement,
        last: bool,
    ) -> list[Output] | None:
        """A warm-up or a recording has failed: make the call again without a graph, or raise what
        the user is told, see Note [Failures]. None if it may be tried once more, which it is not
        after the ``last`` time; then ``inputs`` are there again."""
        state, lost = function.state, ""
        try:
            why = why_it_failed(error)
            reason = f"{what} failed: {why}"
            or_error, short = function.options.or_error, ran_out_of_memory(error)
            once_more = short and not last
            if not isinstance(error, Exception) or (or_error and not once_more):
                if isinstance(error, Exception):
                    self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
                backup.give_up(error)
                raise error
            try:
                # The caller's list, which may be as full as it was, or not.
                inputs[:] = backup.call_again(error)
            except Unrecoverable as e:
                lost = str(e)
            if lost:
                state.failures += not or_error
                self._ledger.add(LedgerKind.TREE_FAILURE, function, f"{reason}; {lost}")
                if hasattr(error, "add_note"):
                    error.add_note(f"memprof: {lost}")
                else:  # Python 3.10
                    compat.log.error("%s of %s failed, and %s", what, function.label, lost)
                # Not while the other is handled, see Note [Whoever holds an error].
                raise error
            state.pool_growth += measured.grown()
            if once_more and (found := self._memory_elsewhere(function)):
                reason = f"{reason}; once more, with {found} bytes of the general pool"
                self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
                return None
            state.failures += not or_error
            state.short_of_memory |= short
            self._ledger.add(LedgerKind.TREE_FAILURE, function, reason)
            if or_error:
                inputs.clear()
                raise error
            # Not the exception: a log record lives on, and with it the frames of the failure.
            compat.log.warning(
                "%s of %s failed; it runs without a graph. %s", what, function.label, why
            )
            return self.run_plainly(function, inputs, Why(reason, failed=True))
        finally:
            # See Note [Whoever holds an error].
            del error
            # Not before: inputs that died in the attempt lie in memory that the old pool gives
            # back.
            self._replace_damaged_pool(function)

    def _memory_elsewhere(self, function: FunctionSpec) -> int:
        """Bytes that the general pool has given back so that the pool may have them; 0 if none, or
        if nothing can follow in the pool."""
        owner = self._owner
        if owner.pool.damaged or owner.memory_kept(function, self._path.node):
            return 0
        return owner.device.empty_cache()

    def _replace_damaged_pool(self, function: FunctionSpec) -> None:
        owner = self._owner
        try:
            if owner.pool.damaged:
                owner.give_back("a failed capture has spoilt the pool or the device's generator")
            elif owner.memory_kept(function, self._path.node):
                owner.leave()
        except Exception as e:
            # The call has its results, or an error of its own. Next time it is tried again.
            owner.pool.damaged = True
            compat.log.warning("the pool could not be replaced: %s: %s", type(e).__name__, e)

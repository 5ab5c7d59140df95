"""Calls that are no replays: warming up, recording, running without a graph.

Note [Failures]
~~~~~~~~~~~~~~~
A warm-up or a recording that raises must not cost the user's call. After it, the state is
RECORDING if there is a path: the books were restored before the attempt, they are right
and the outputs own their blocks, which is what RECORDING says. The call is made again
through the plain callable, from inputs that ``recovery`` kept. If that raises too, the
error is the program's own and goes to the user. So does at once what is no ``Exception``:
an interrupt is not to be followed by another run; and any error if the user has asked for
graphs or errors (``cudagraph_or_error``).

Note [A pool that nobody needs]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What a pool has taken from the device it keeps for as long as anything is recorded in it, and no
one else can use it. A function that was warmed up there and is then run without a graph (its
capture failed, its parameters keep moving, an input is on the host) would need its memory once
more beside the pool. So before it runs that way for the first time, all recordings are dropped
and a new pool is begun, if the function's part of the old one is worth it: those that can be
recorded are recorded again, in a pool of the size that they need.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from . import torch_logs
from .errors import UntrackedMemory, why_it_failed
from .function import CompilationMode, GraphID
from .ledger import Measurement
from .liveness import path_refs
from .locks import capturing
from .node_recorded import CUDAGraphNode
from .node_warmup import CUDAWarmupNode
from .path_state import ExecutionState
from .placement import keep, placement_of
from .pool_check import memory_kept
from .pool_debug import history
from .recovery import Attempt, Unrecoverable, let_go_of_frames
from .stopping import Cause, path_addresses

if TYPE_CHECKING:
    from .device.protocol import Input, Output
    from .function import Function
    from .manager import CUDAGraphTreeManager


def warm_up(manager: CUDAGraphTreeManager, function: Function, inputs: list[Input]) -> list[Output]:
    """Run in the pool, without recording. ``inputs`` is emptied.

    Raises:
        UntrackedMemory: it has kept memory of the pool, and ``cudagraph_or_error`` is on.
        Exception: the program's own, or see Note [Calling again after a failure].
    """
    with capturing():
        measured = Measurement.begin(manager.pool.reserved_bytes)
        restore_books(manager, function)
        compat.align_inputs(inputs, function.alignment_checked)
        parent = manager.current_node
        if parent is None:
            manager.step += 1
        first = function.id not in manager.warmed_up_functions
        node = CUDAWarmupNode(function, GraphID(next(manager.warmup_counter)), parent, manager.step)
        attempt = Attempt.warm_up(function, inputs, path_addresses(parent), manager.pool.device)
        # It is called from here on, unless that fails, or says that once is not enough.
        manager.warmed_up_functions.add(function.id)
        torch_logs.warm_up(function)
        manager.active_warm_up = function
        try:
            with _history(manager, function):
                out = node.run(inputs, manager.pool)
                # What it says of memory must be asked for while the allocator keeps lines.
                kept = _memory_kept(manager, node, function)
        except BaseException as e:
            manager.warmed_up_functions.discard(function.id)
            return _failed(manager, function, inputs, "warm-up", e, attempt, measured)
        finally:
            manager.active_warm_up = None
        attempt.succeeded()
        manager.arrive(node, ExecutionState.WARMUP)
        again = "the one before was not to be the last" if first else "a warm-up came before it"
        manager.note(
            LedgerKind.WARM_UP,
            function,
            again if function.warm_ups else "first run",
            node=node.id.id,
            parent=_number(parent),
            measured=measured,
        )
        function.warm_ups += 1
        _grown(manager, function, measured)
        manager.spent(function)
        if kept:
            manager.warmed_up_functions.discard(function.id)
            manager.failures[function] += 1
            reason = f"warm-up kept memory: {' '.join(kept.split())}"
            manager.note(LedgerKind.TREE_FAILURE, function, reason)
            _leave_pool(manager)
            if function.options.or_error:
                raise UntrackedMemory(kept)
            compat.log.warning("%s: %s", function.label, reason)
        return out


def _history(manager: CUDAGraphTreeManager, function: Function) -> AbstractContextManager[object]:
    again = manager.device.address_bound and manager.failures[function] > 0
    return history(manager.pool, function.options, again=again)


def _memory_kept(
    manager: CUDAGraphTreeManager,
    node: CUDAGraphNode | CUDAWarmupNode | None,
    function: Function,
) -> str:
    """What is allocated in the pool and no output of the path to ``node``, in sentences; "" if
    nothing. The books must be right. See Note [Memory that a function keeps]."""
    if not function.options.checks_pool:
        return ""
    path = [] if node is None else path_refs(node.path_weakrefs)
    live = {r.address for r in path if not r.expired()}
    return memory_kept(manager.pool, live, function.options)


def _leave_pool(manager: CUDAGraphTreeManager) -> None:
    manager.pool.damaged = True
    manager.give_memory_back("a function has kept memory of the pool")


def record(
    manager: CUDAGraphTreeManager,
    function: Function,
    inputs: list[Input],
    reason: str,
    cause: Cause,
) -> list[Output]:
    """Record after the current node. ``inputs`` is emptied.

    Args:
        manager: whose tree.
        function: what.
        inputs: of the call.
        reason: why no recording that exists will do.
        cause: the same for programs.

    Raises:
        Exception: the program's own.
    """
    with capturing(), compat.recording_callbacks(function.compile_id):
        measured = Measurement.begin(manager.pool.reserved_bytes)
        restore_books(manager, function)
        parent = manager.current_node
        assert not isinstance(parent, CUDAWarmupNode)
        if parent is None:
            manager.step += 1
        manager.leaves.remember(function, inputs)
        above = path_addresses(parent)
        attempt = (
            Attempt.recording(function, inputs, above, manager.pool)
            if manager.device.address_bound
            else Attempt.warm_up(function, inputs, above, manager.pool.device)
        )
        manager.device.synchronize()
        number = manager.new_graph_id()
        torch_logs.recording(function, number.id, inputs)
        try:
            with _history(manager, function), _timed(function):
                node = CUDAGraphNode(
                    function,
                    number,
                    parent,
                    inputs,
                    manager.pool,
                    address_bound=manager.device.address_bound,
                    demoted=manager.places.demoted((_number(parent), function)),
                    step=manager.step,
                    check=function.options.checks_pool,
                    # Who has a record wants to know, and it costs milliseconds, once.
                    learn_program=manager.settings.programs or function.record is not None,
                    buffers=attempt.buffers,
                )
        except BaseException as e:
            return _failed(manager, function, inputs, "recording", e, attempt, measured)
        attempt.succeeded()
        if function.options.synchronizes:
            node.replay.wait_with(manager.device.synchronize)
        again = manager.add_node(function, parent, node)
        manager.moves.recorded(node)
        manager.arrive(node, ExecutionState.RECORDING)
        manager.device.synchronize()
        node.marginal_bytes = _grown(manager, function, measured)
        function.recordings += 1
        _place(node)
        manager.note(
            # One that was in the way may have been dropped meanwhile.
            LedgerKind.RERECORD if again or cause.cause else LedgerKind.RECORD,
            function,
            reason,
            node=node.id.id,
            parent=_number(parent),
            measured=measured,
            marginal=node.marginal_bytes,
            **cause.detail(),
        )
        # After the entry above, so that the ledger has its replays below it.
        node.recorded_ns = time.time_ns()
        manager.spent(function)
        return node.run_first_inputs()


def _timed(function: Function) -> AbstractContextManager[object]:
    backward = function.mode is CompilationMode.BACKWARD
    return compat.timed("CUDAGraphNode.record", function.compile_id, backward=backward)


def _place(node: CUDAGraphNode) -> None:
    """Tell the function's record where the recording has its memory."""
    record = node.wrapped_function.record
    if record is None:
        return
    try:
        placement = placement_of(node, list(node._path_from_root))
    except Exception:
        compat.log.warning("no placement of %s", node.wrapped_function.label, exc_info=True)
        return
    if placement is not None:
        keep(record, placement)


def _grown(manager: CUDAGraphTreeManager, function: Function, measured: Measurement) -> int:
    """Bytes that the pool has grown by since, which are put down to the function."""
    grown = manager.pool.reserved_bytes() - measured.pool_before
    function.pool_growth += grown
    return grown


def _give_back(manager: CUDAGraphTreeManager, function: Function) -> None:
    """See Note [A pool that nobody needs]."""
    with capturing():
        reserved = manager.pool.reserved_bytes()
    if function.pool_growth < reserved >> 6:
        return
    manager.give_memory_back("the pool took memory for a function that now runs without a graph")


def run_plainly(
    manager: CUDAGraphTreeManager,
    function: Function,
    inputs: list[Input],
    reason: str,
    *,
    note: bool = True,
    cause: Cause = Cause(),  # noqa: B008 - immutable
    this_once: bool = False,
) -> list[Output]:
    """Run without a graph, out of the general pool. ``inputs`` is emptied.

    Args:
        manager: whose tree.
        function: what.
        inputs: of the call.
        reason: why.
        note: write that to the ledger.
        cause: the same for programs.
        this_once: it will be recorded after all.

    Raises:
        RuntimeError: ``cudagraph_or_error`` is on, and it is not for this once.
        Exception: the program's own.
    """
    if function.options.or_error and not this_once:
        raise RuntimeError(
            f"{function.label} would run without a CUDA graph, and cudagraph_or_error is on: "
            f"{reason}"
        )
    if function.pool_growth and not function.recordings:
        _give_back(manager, function)
    if note:
        manager.note(LedgerKind.SKIP, function, reason, **cause.detail())
    if function.mode is CompilationMode.FORWARD:
        manager.plain_forwards.ran_plainly(function)
    manager.ran_outside()
    compat.align_inputs(
        inputs, [i for i in function.alignment_checked if i not in function.mutated_input_idxs]
    )
    model = compat.with_aligned_inputs(
        function.model,
        [i for i in function.alignment_checked if i in function.mutated_input_idxs],
        function.mutated_input_idxs,
    )
    return list(model(inputs))


def restore_books(manager: CUDAGraphTreeManager, function: Function | None) -> None:
    """Make the allocator's books say what memory says, if a replay came last."""
    node = manager.current_node
    if manager.path_state is not ExecutionState.EXECUTION or not isinstance(node, CUDAGraphNode):
        return
    manager.debug_checkpointing_counter += 1
    torch_logs.books_restored(manager.debug_checkpointing_counter)
    # Cached tensors own nothing and would look live.
    node.remove_path_cached_tensors()
    node.all_outputs_are_dead()
    node.restore_pool()
    manager.books_are_right()
    manager.note(
        LedgerKind.CHECKPOINT, function, "the allocator's books were restored", node=node.id.id
    )


def _failed(
    manager: CUDAGraphTreeManager,
    function: Function,
    inputs: list[Input],
    what: str,
    error: BaseException,
    attempt: Attempt,
    measured: Measurement,
) -> list[Output]:
    """See Note [Failures]."""
    try:
        return _call_again(manager, function, inputs, what, error, attempt, measured)
    finally:
        # Not before: inputs that died in the attempt lie in memory that the old pool gives back.
        _replace_damaged_pool(manager, function)


def _call_again(
    manager: CUDAGraphTreeManager,
    function: Function,
    inputs: list[Input],
    what: str,
    error: BaseException,
    attempt: Attempt,
    measured: Measurement,
) -> list[Output]:
    why = why_it_failed(error)
    reason = f"{what} failed: {why}"
    if not isinstance(error, Exception) or function.options.or_error:
        if isinstance(error, Exception):
            manager.note(LedgerKind.TREE_FAILURE, function, reason)
        try:
            attempt.generators.restore()
        except Exception as e:
            compat.log.warning("no generator was put back: %s: %s", type(e).__name__, e)
        let_go_of_frames(error)
        raise error
    manager.failures[function] += 1
    try:
        # The caller's list, which may be as full as it was, or not.
        inputs[:] = _inputs_again(attempt, error)
    except Unrecoverable as e:
        manager.note(LedgerKind.TREE_FAILURE, function, f"{reason}; {e}")
        if hasattr(error, "add_note"):
            error.add_note(f"memprof: {e}")
        else:  # Python 3.10
            compat.log.error("%s of %s failed, and %s", what, function.label, e)
        raise error from None
    _grown(manager, function, measured)
    manager.note(LedgerKind.TREE_FAILURE, function, reason)
    # Not the exception: a log record lives on, and with it the frames of the failure.
    compat.log.warning("%s of %s failed; it runs without a graph. %s", what, function.label, why)
    return run_plainly(manager, function, inputs, reason, note=False)


def _inputs_again(attempt: Attempt, error: Exception) -> list[Input]:
    """The inputs as they were, and all else that the call reads.

    Raises:
        Unrecoverable: that cannot be had, for whatever reason: ``error`` is what the user is told.
    """
    try:
        attempt.generators.restore()
        return attempt.inputs_again(error)
    except Unrecoverable:
        raise
    except Exception as e:
        let_go_of_frames(error)
        raise Unrecoverable(
            f"the call cannot be made again without a graph: {type(e).__name__}: {e}"
        ) from e


def _replace_damaged_pool(manager: CUDAGraphTreeManager, function: Function) -> None:
    try:
        if manager.pool.damaged:
            manager.give_memory_back(
                "a failed capture has spoilt the pool or the device's generator"
            )
        elif _memory_kept(manager, manager.current_node, function):
            _leave_pool(manager)
    except Exception as e:
        # The call has its results, or an error of its own. Next time it is tried again.
        manager.pool.damaged = True
        compat.log.warning("the pool could not be replaced: %s: %s", type(e).__name__, e)


def _number(node: CUDAGraphNode | CUDAWarmupNode | None) -> int | None:
    return None if node is None else node.id.id

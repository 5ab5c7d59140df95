"""Calls that are no replays: warming up, recording, running without a graph.

Note [Failures]
~~~~~~~~~~~~~~~
A warm-up or a recording that raises must not cost the user's call. After it, the state is
RECORDING if there is a path: the books were restored before the attempt, they are right
and the outputs own their blocks, which is what RECORDING says. The call is made again
through the plain callable, from inputs that ``recovery`` kept. If that raises too, the
error is the program's own and goes to the user. So does at once what is no ``Exception``:
an interrupt is not to be followed by another run.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat
from .errors import why_it_failed
from .function import GraphID
from .ledger import Measurement
from .locks import capturing
from .node_recorded import CUDAGraphNode
from .node_warmup import CUDAWarmupNode
from .path_state import ExecutionState
from .placement import keep, placement_of
from .recovery import Attempt, Unrecoverable, let_go_of_frames

if TYPE_CHECKING:
    from .device.protocol import Input, Output
    from .function import Function
    from .manager import CUDAGraphTreeManager


def warm_up(manager: CUDAGraphTreeManager, function: Function, inputs: list[Input]) -> list[Output]:
    """Run in the pool, without recording. ``inputs`` is emptied.

    Raises:
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
        manager.warmed_up_functions.add(function.id)
        node = CUDAWarmupNode(function, GraphID(next(manager.warmup_counter)), parent, manager.step)
        attempt = Attempt.warm_up(function, inputs, _path_addresses(parent))
        manager.active_warm_up = function
        try:
            out = node.run(inputs, manager.pool)
        except BaseException as e:
            manager.warmed_up_functions.discard(function.id)
            return _failed(manager, function, inputs, "warm-up", e, attempt)
        finally:
            manager.active_warm_up = None
        attempt.succeeded()
        manager.arrive(node, ExecutionState.WARMUP)
        manager.note(
            LedgerKind.WARM_UP,
            function,
            "first run" if first else "a warm-up came before it",
            node=node.id.id,
            parent=_number(parent),
            measured=measured,
        )
        manager.spent(function)
        return out


def record(
    manager: CUDAGraphTreeManager, function: Function, inputs: list[Input], reason: str
) -> list[Output]:
    """Record after the current node. ``inputs`` is emptied.

    Args:
        manager: whose tree.
        function: what.
        inputs: of the call.
        reason: why no recording that exists will do.

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
        above = _path_addresses(parent)
        attempt = (
            Attempt.recording(function, inputs, above, manager.pool)
            if manager.device.address_bound
            else Attempt.warm_up(function, inputs, above)
        )
        manager.device.synchronize()
        try:
            node = CUDAGraphNode(
                function,
                manager.new_graph_id(),
                parent,
                inputs,
                manager.pool,
                address_bound=manager.device.address_bound,
                demoted=manager.places.demoted((_number(parent), function)),
                step=manager.step,
                check=compat.triton_config.slow_path_cudagraph_asserts,
                # Who has a record wants to know, and it costs milliseconds, once.
                learn_program=manager.settings.programs or function.record is not None,
            )
        except BaseException as e:
            return _failed(manager, function, inputs, "recording", e, attempt)
        attempt.succeeded()
        again = manager.add_node(function, parent, node)
        manager.arrive(node, ExecutionState.RECORDING)
        manager.device.synchronize()
        node.marginal_bytes = manager.pool.reserved_bytes() - measured.pool_before
        _place(node)
        manager.note(
            LedgerKind.RERECORD if again else LedgerKind.RECORD,
            function,
            reason,
            node=node.id.id,
            parent=_number(parent),
            measured=measured,
            marginal=node.marginal_bytes,
        )
        # After the entry above, so that the ledger has its replays below it.
        node.recorded_ns = time.time_ns()
        manager.spent(function)
        return node.run_first_inputs()


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


def run_plainly(
    manager: CUDAGraphTreeManager,
    function: Function,
    inputs: list[Input],
    reason: str,
    *,
    note: bool = True,
) -> list[Output]:
    """Run without a graph, out of the general pool. ``inputs`` is emptied."""
    if note:
        manager.note(LedgerKind.SKIP, function, reason)
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
) -> list[Output]:
    """See Note [Failures]."""
    if not isinstance(error, Exception):
        let_go_of_frames(error)
        _replace_damaged_pool(manager)
        raise error
    manager.failures[function] += 1
    why = why_it_failed(error)
    reason = f"{what} failed: {why}"
    try:
        # The caller's list, which may be as full as it was, or not.
        inputs[:] = attempt.inputs_again(error)
    except Unrecoverable as e:
        manager.note(LedgerKind.TREE_FAILURE, function, f"{reason}; {e}")
        if hasattr(error, "add_note"):
            error.add_note(f"memprof: {e}")
        else:  # Python 3.10
            compat.log.error("%s of %s failed, and %s", what, function.label, e)
        raise error from None
    manager.note(LedgerKind.TREE_FAILURE, function, reason)
    # Not the exception: a log record lives on, and with it the frames of the failure.
    compat.log.warning("%s of %s failed; it runs without a graph. %s", what, function.label, why)
    try:
        return run_plainly(manager, function, inputs, reason, note=False)
    finally:
        # Not before: inputs that died in the attempt lie in memory that the old pool gives back.
        _replace_damaged_pool(manager)


def _replace_damaged_pool(manager: CUDAGraphTreeManager) -> None:
    if manager.pool.damaged:
        manager.start_over("a failed capture has spoilt the pool or the device's generator")


def _number(node: CUDAGraphNode | CUDAWarmupNode | None) -> int | None:
    return None if node is None else node.id.id


def _path_addresses(node: CUDAGraphNode | CUDAWarmupNode | None) -> set[int]:
    if node is None:
        return set()
    return {r.address for refs in node.path_weakrefs for r in refs if r is not None}

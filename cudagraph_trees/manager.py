"""The tree: which function runs how, and when paths end.

Note [The four states]
~~~~~~~~~~~~~~~~~~~~~~
The state says what the allocator's books are worth and what may follow.

* NONE: no path. Nothing of the pool is respected; the next node is a root.
* WARMUP: the last function ran without being recorded. Its outputs own their blocks. Only
  warm-ups may follow, since addresses differ from call to call.
* RECORDING: the last function was recorded just now. Its outputs own their blocks, the books
  are right, and the next function is recorded without a look at what exists.
* EXECUTION: the last function was replayed. The books are those of the last recording;
  they are restored from the node's checkpoint before anything is warmed up or recorded.

A path ends when a new step begins (``generations``, ``path_end``) or when none of its
outputs is held any more. After a replay the second is looked at only if no child fits:
looking costs time, and a child that fits says the same.

Note [Failures]
~~~~~~~~~~~~~~~
A warm-up or a recording that raises must not cost the user's call. After it, the state is
RECORDING if there is a path: the books were restored before the attempt, they are right
and the outputs own their blocks, which is what RECORDING says. The call is made again
through the plain callable, from inputs that ``recovery`` kept. If that raises too, the
error is the program's own and goes to the user.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import torch

from memprof.profiler.model import GraphRecord, LedgerEntry, LedgerKind

from . import _torch_compat as compat
from . import history
from .budget import Budget
from .device.protocol import Device, Input, Model, Output
from .function import CompilationMode, Function, FunctionID, GraphID
from .generations import Generations
from .inputs import CheckInvariantStatus
from .ledger import TreeLedger
from .liveness import all_dead
from .locks import capture_lock
from .node_recorded import CUDAGraphNode, StillHeld
from .node_warmup import CUDAWarmupNode
from .path_end import end_path, end_path_quickly
from .recovery import Attempt, Unrecoverable
from .settings import TreeSettings, current_settings

MAX_FAILURES = 2
"""A function whose warm-up or recording failed so often runs without a graph for good."""


class ExecutionState(Enum):
    """See Note [The four states]."""

    NONE = auto()
    WARMUP = auto()
    RECORDING = auto()
    EXECUTION = auto()


_NONE = ExecutionState.NONE
_WARMUP = ExecutionState.WARMUP
_RECORDING = ExecutionState.RECORDING
_EXECUTION = ExecutionState.EXECUTION
_FORWARD = CompilationMode.FORWARD
_BACKWARD = CompilationMode.BACKWARD


class CUDAGraphTreeManager:
    """All recordings that share one pool.

    Attributes:
        roots: recordings that nothing precedes, by function.
        current_node: the node that ran last, None if there is no path.
        path_state: see Note [The four states].
        ids_to_funcs: all wrapped functions.
        warmed_up_functions: those that may be recorded.
        graph_counter: numbers recordings.
        running_forwards_with_pending_backwards: see ``generations``.
        debug_checkpointing_counter: how often the allocator's books were restored.
        debug_fail_counter: how often a function had to be recorded or warmed up.
        step: number of the step that runs, from 1.
        budget: the limit on the pool.
        clones_outputs: whether outputs held beyond their step get memory of their own; looked
            up when a function is added.
        ledger: everything that was done.
    """

    def __init__(self, device: Device, settings: TreeSettings | None = None) -> None:
        self.device = device
        self.device_index = device.device.index or 0
        self.settings = settings if settings is not None else current_settings()
        with capture_lock:
            self.pool = device.create_pool(self.settings.pool_initial)
        self.ledger = TreeLedger(str(device.device), lambda: self.pool.reserved_bytes())
        history.remember(self)
        self.roots: dict[FunctionID, list[CUDAGraphNode]] = defaultdict(list)
        self.ids_to_funcs: dict[FunctionID, Function] = {}
        self.warmed_up_functions: set[FunctionID] = set()
        self.graph_counter = itertools.count()
        self.warmup_counter = itertools.count(-1, -1)
        self.func_counter = itertools.count()
        self.debug_fail_counter = 0
        self.debug_checkpointing_counter = 0
        self.step = 0
        self.budget = Budget(self.settings.pool_budget)
        self.alive = True
        self.clones_outputs = False
        self._generations = Generations()
        self._mark, self._tracker = self._generations.mark, self._generations.tracker
        self._roots: dict[Function, list[CUDAGraphNode]] = {}
        self._node: CUDAGraphNode | CUDAWarmupNode | None = None
        self._state = _NONE
        self._clock = 0
        # By (number of the node before, function).
        self._skipped: dict[tuple[int | None, Function], str] = {}
        self._rerecorded: dict[tuple[int | None, Function], int] = defaultdict(int)
        self._churn: dict[tuple[int | None, Function], dict[int, int]] = {}
        self._demoted: dict[tuple[int | None, Function], frozenset[int]] = {}
        self._failures: dict[Function, int] = defaultdict(int)
        self._warned_mutation: set[Function] = set()
        self._warned_limit: set[tuple[int | None, Function]] = set()
        self._warned_pending: set[Function] = set()
        self._active_warm_up: Function | None = None
        self._leaves: dict[int, Any] = {}
        compat.set_cached_tensors_enabled(True)

    # ---- functions

    def add_function(
        self,
        model: Model,
        inputs: list[Input],
        static_input_idxs: Sequence[int],
        stack_traces: Sequence[str | None] | None,
        mode: CompilationMode,
        constants: tuple[torch.Tensor, ...] = (),
        placeholders: Sequence[Any] = (),
        mutated_input_idxs: tuple[int, ...] = (),
        *,
        user_outputs: frozenset[int] | None = None,
        kernel_free: bool = False,
        compile_id: object = None,
        key: tuple[int, ...] = (),
        record: GraphRecord | None = None,
        partition: int | None = None,
        graph_outputs: tuple[int | None, ...] | None = None,
        alignment_checked: Sequence[int] = (),
    ) -> tuple[Callable[[list[Input]], list[Output]], list[Output]]:
        """Wrap a function and call it for the first time.

        Returns:
            The wrapped function, and what the first call returned.
        """
        function = Function(
            FunctionID(next(self.func_counter)),
            model,
            mode,
            tuple(static_input_idxs),
            tuple(t for t in constants if isinstance(t, torch.Tensor) and t.device.type != "cpu"),
            placeholders,
            tuple(mutated_input_idxs),
            stack_traces,
            user_outputs,
            kernel_free,
            compile_id,
            key,
            record,
            partition,
            graph_outputs,
            tuple(alignment_checked),
        )
        function.loose = tuple(i for i in range(len(inputs)) if i not in function.static_input_idxs)
        self.clones_outputs = (
            self.settings.outputs == "clone"
            or compat.triton_config.cudagraph_trees_generation_cloning == "user_visible"
        )
        self.ids_to_funcs[function.id] = function
        wrapped = functools.partial(self.call, function)
        return wrapped, wrapped(inputs)

    def run(self, inputs: list[Input], function_id: FunctionID) -> list[Output]:
        """Call a wrapped function by its number."""
        for id, function in self.ids_to_funcs.items():
            if id.id == function_id.id:
                return self.call(function, inputs)
        raise KeyError(f"no function {function_id}; there are {len(self.ids_to_funcs)}")

    # ---- one call

    def call(self, function: Function, inputs: list[Input]) -> list[Output]:
        """Run a function in the way that is right now. ``inputs`` is emptied.

        This is the hot path: after a replay, or at the beginning, it looks for a recording
        that fits and replays it. Everything else is ``_call_slowly``.
        """
        generations = self._generations
        generation = self._mark.mark_step_counter or self._tracker.generation
        node = self._node
        if node is None or self._state is _EXECUTION:
            if (
                node is not None
                and generation != generations.last
                and (self._mark.mark_step_counter or not generations.pending_backward)
            ):
                if not (
                    all_dead(node.live_after)  # type: ignore[union-attr]
                    or end_path_quickly(self, node, inputs, function)  # type: ignore[arg-type]
                    or node.all_outputs_are_dead()
                ):
                    end_path(self, inputs, function)
                self.current_node = node = None
            children = self._roots if node is None else node.by_function  # type: ignore[union-attr]
            for child in children.get(function, ()):
                if child.fits(inputs):
                    if node is None:
                        self.step += 1
                    self._node = child
                    self._state = _EXECUTION
                    generations.last = generation
                    self._clock += 1
                    child.last_used = self._clock
                    child.replays += 1
                    try:
                        outputs = child.replay(inputs)
                    except StillHeld as e:
                        self._node = node
                        self._state = _NONE if node is None else _EXECUTION
                        child.replays -= 1
                        inputs[:] = e.inputs
                        continue
                    if function.mode is _FORWARD:
                        generations.pending_backward = True
                    elif function.mode is _BACKWARD:
                        generations.pending_backward = False
                    return outputs
        outputs = self._call_slowly(function, inputs)
        if function.mode is _FORWARD:
            generations.pending_backward = True
        elif function.mode is _BACKWARD:
            generations.pending_backward = False
        return outputs

    def _call_slowly(self, function: Function, inputs: list[Input]) -> list[Output]:
        if not self.alive:
            raise RuntimeError("this manager of CUDA graph trees was shut down")
        if self._state is _RECORDING or self._state is _WARMUP:
            self.try_end_curr_recording(function, inputs)
            if self._node is None and self._roots.get(function):
                return self.call(function, inputs)
        if self.budget.over is not None:
            self.try_end_curr_execution(function, inputs)
            if self._node is None:
                with capture_lock:
                    self.budget.enforce(self)
        if self._failures[function] >= MAX_FAILURES:
            return self._run_plainly(function, inputs, "warm-up or recording failed before")
        place = (self._node_number(), function)
        if place not in self._skipped:
            self._look_for_reasons_against(place, inputs)
        if self._skipped[place]:
            return self._run_plainly(function, inputs, self._skipped[place])
        if self._exceeds_limit(place):
            return self._run_plainly(function, inputs, "it was recorded too often at this place")

        config = compat.triton_config
        if (
            (function.id not in self.warmed_up_functions and not config.skip_cudagraph_warmup)
            or self._state is _WARMUP
            or config.force_cudagraphs_warmup
        ):
            return self._warm_up(function, inputs)

        reason = "first recording"
        if self._state is not _RECORDING:
            outcome = self._execute_or_explain(function, inputs)
            if not isinstance(outcome, str):
                return outcome
            reason = outcome
            if why := self._skipped.get((self._node_number(), function)):
                return self._run_plainly(function, inputs, why)
            if self._exceeds_limit((self._node_number(), function)):
                return self._run_plainly(function, inputs, reason)
        return self._record(function, inputs, reason)

    def _execute_or_explain(self, function: Function, inputs: list[Input]) -> list[Output] | str:
        """Replay a recording that fits, or say why none does and prepare to record."""
        node = self._node
        assert not isinstance(node, CUDAWarmupNode)
        existing = (self._roots if node is None else node.by_function).get(function, [])
        reason, counts = "first recording", False
        for child in existing:
            status, text = child.mismatch(inputs)
            if status is CheckInvariantStatus.SUCCESS:
                # It was tried just now, and someone holds an input that must die.
                text = "an input that died in the recording is still held"
            reason, counts = text, True
        if node is not None and function in self._roots:
            self.try_end_curr_execution(function, inputs)
            if self._node is None:
                return self.call(function, inputs)
        place = (self._node_number(), function)
        if function.mutated_input_idxs:
            self._look_for_reasons_against(place, inputs)
            if self._skipped[place]:
                return reason
        if existing:
            self._demote(place, existing[-1], inputs)
        if counts:
            self._rerecorded[place] += 1
            if self._exceeds_limit(place):
                if place not in self._warned_limit:
                    self._warned_limit.add(place)
                    limit = compat.triton_config.cudagraph_unexpected_rerecord_limit
                    compat.announce_skip(
                        f"skipping cudagraph due to function {function.id.id} exceeding max "
                        f"re-recording limit (={limit}) on cudagraph node {place[0]} due to "
                        f"{reason}."
                    )
                return f"re-recording limit reached: {reason}"
        self.debug_fail_counter += 1
        self.try_end_curr_execution(function, inputs)
        return reason

    # ---- warm-up and recording

    def _warm_up(self, function: Function, inputs: list[Input]) -> list[Output]:
        with capture_lock, self.ledger.measured() as measured:
            self._restore_books(function)
            compat.align_inputs(inputs, function.alignment_checked)
            if self._node is None:
                self.step += 1
            first = function.id not in self.warmed_up_functions
            self.warmed_up_functions.add(function.id)
            node = CUDAWarmupNode(
                function, GraphID(next(self.warmup_counter)), self._node, self.step
            )
            attempt = Attempt.warm_up(function, inputs, self._path_addresses())
            self._active_warm_up = function
            try:
                out = node.run(inputs, self.pool)
            except Exception as e:
                self.warmed_up_functions.discard(function.id)
                return self._failed(function, "warm-up", e, attempt)
            finally:
                self._active_warm_up = None
            attempt.succeeded()
            parent = self._node_number()
            self._node, self._state = node, _WARMUP
            self._generations.update()
            self.note(
                LedgerKind.WARM_UP,
                function,
                "first run" if first else "a warm-up came before it",
                node=node.id.id,
                parent=parent,
                measured=measured,
            )
            self._spent(function)
            return out

    def _record(self, function: Function, inputs: list[Input], reason: str) -> list[Output]:
        with (
            capture_lock,
            compat.recording_callbacks(function.compile_id),
            self.ledger.measured() as measured,
        ):
            self._restore_books(function)
            parent = self._node
            assert not isinstance(parent, CUDAWarmupNode)
            if parent is None:
                self.step += 1
            self._remember_leaves(function, inputs)
            attempt = Attempt.recording(function, inputs, self._path_addresses(), self.pool)
            place = (self._node_number(), function)
            self.device.synchronize()
            try:
                node = CUDAGraphNode(
                    function,
                    GraphID(next(self.graph_counter)),
                    parent,
                    inputs,
                    self.pool,
                    address_bound=self.device.address_bound,
                    demoted=self._demoted.get(place, frozenset()),
                    step=self.step,
                    check_pool=compat.triton_config.slow_path_cudagraph_asserts,
                    learn_program=self.settings.programs,
                )
            except Exception as e:
                return self._failed(function, "recording", e, attempt)
            attempt.succeeded()
            siblings = self._roots if parent is None else parent.by_function
            kind = LedgerKind.RERECORD if siblings.get(function) else LedgerKind.RECORD
            if parent is None:
                self.roots[function.id].append(node)
                self._roots[function] = self.roots[function.id]
            else:
                parent.add_child(function, node)
            self._node, self._state = node, _RECORDING
            self._generations.update()
            self.device.synchronize()
            node.marginal_bytes = self.pool.reserved_bytes() - measured.pool_before
            self.note(
                kind,
                function,
                reason,
                node=node.id.id,
                parent=None if parent is None else parent.id.id,
                measured=measured,
                marginal=node.marginal_bytes,
            )
            self._spent(function)
            return node.run_first_inputs()

    def _failed(
        self, function: Function, what: str, error: Exception, attempt: Attempt
    ) -> list[Output]:
        """See Note [Failures]."""
        self._failures[function] += 1
        if self._node is not None and self._state is _EXECUTION:
            self._state = _RECORDING
        reason = f"{what} failed: {type(error).__name__}: {error}"
        try:
            inputs = attempt.inputs_again(error)
        except Unrecoverable as e:
            self.note(LedgerKind.TREE_FAILURE, function, f"{reason}; {e}")
            error.add_note(f"memprof: {e}") if hasattr(error, "add_note") else None
            raise error from None
        self.note(LedgerKind.TREE_FAILURE, function, reason)
        if self.pool.damaged:
            self.start_over("a failed capture left the device's generator with another state")
        compat.log.warning(
            "%s of %s failed; it runs without a graph. %s: %s",
            what,
            function.label,
            type(error).__name__,
            # Not the exception: a log record lives on, and with it the frames of the failure.
            str(error),
        )
        return self._run_plainly(function, inputs, reason, note=False)

    def give_up(self, function: Function) -> None:
        """``function`` runs without a graph from now on."""
        self._failures[function] = MAX_FAILURES

    def _spent(self, function: Function) -> None:
        """Something was allocated from the pool."""
        if self.budget.limit is not None and self.budget.spent(
            function, self.pool.reserved_bytes()
        ):
            # Hides the roots from the hot path until the budget was enforced.
            self._roots = {}

    def start_over(self, reason: str) -> None:
        """Drop all recordings and take a new pool.

        The allocator's books must be right: outputs of the current path own their blocks in
        the old pool and stay valid for as long as they are held.
        """
        for node in list(self.nodes()):
            self.note(LedgerKind.EVICTION, node.wrapped_function, reason, node=node.id.id)
            self.ledger.retire(node)
            node.release()
        self.roots.clear()
        self._roots = {}
        self.current_node = None
        for by_place in (self._skipped, self._rerecorded, self._churn, self._demoted):
            by_place.clear()
        self.pool.release()
        self.pool = self.device.create_pool(self.settings.pool_initial)
        self.device.empty_cache()

    def _run_plainly(
        self, function: Function, inputs: list[Input], reason: str, *, note: bool = True
    ) -> list[Output]:
        """Run without a graph, out of the general pool."""
        if note:
            self.note(LedgerKind.SKIP, function, reason)
        compat.align_inputs(
            inputs, [i for i in function.alignment_checked if i not in function.mutated_input_idxs]
        )
        model = compat.with_aligned_inputs(
            function.model,
            [i for i in function.alignment_checked if i in function.mutated_input_idxs],
            function.mutated_input_idxs,
        )
        return list(model(inputs))

    def _restore_books(self, function: Function) -> None:
        """Make the allocator's books say what memory says, if a replay came last."""
        node = self._node
        if self._state is not _EXECUTION or not isinstance(node, CUDAGraphNode):
            return
        self.debug_checkpointing_counter += 1
        # Cached tensors own nothing and would look live.
        node.remove_path_cached_tensors()
        node.all_outputs_are_dead()
        live: dict[int, int] = {}
        for r in node.path_live_weakrefs():
            live.setdefault(r.address, r.pointer)
        dead = node.dead_since_recording()
        self.pool.restore(node.checkpoint, list(live.values()), dead)
        # From here on the state is as after a recording; see Note [Failures].
        self.note(
            LedgerKind.CHECKPOINT,
            function,
            "the allocator's books were restored",
            node=node.id.id,
        )

    # ---- the ends of paths

    def try_end_curr_recording(self, function: Function | None, inputs: list[Input]) -> None:
        """End the recording if a new step begins or nobody holds its outputs."""
        node = self._node
        assert node is not None
        if self.can_start_new_generation():
            end_path(self, inputs, function)
        elif node.all_outputs_are_dead():
            self.current_node = None
        elif function is not None:
            self._warn_if_stuck(function)

    try_end_curr_warmup = try_end_curr_recording

    def try_end_curr_execution(self, function: Function | None, inputs: list[Input]) -> None:
        """End the execution if a new step begins or nobody holds its outputs."""
        node = self._node
        if node is None:
            return
        if node.all_outputs_are_dead():
            self.current_node = None
        elif self.can_start_new_generation():
            end_path(self, inputs, function)

    def _warn_if_stuck(self, function: Function) -> None:
        """Warn if the same function comes again and again and no step ever ends."""
        if function in self._warned_pending or not self._generations.moved():
            return
        assert self._node is not None
        path = list(self._node._path_from_root)
        same = [n for n in path if n.wrapped_function is function]
        if len(same) <= 1:
            return
        before = {n.parent.wrapped_function for n in (*same, self._node) if n.parent is not None}
        if len(before) == len(same):
            return
        self._warned_pending.add(function)
        warnings.warn(
            "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards: "
            "outputs from a previous step still require backward. Consider running with "
            "torch.no_grad(), detaching outputs, or using "
            "torch.compiler.cudagraph_mark_step_begin() before each model invocation.",
            stacklevel=2,
        )

    def can_start_new_generation(self) -> bool:
        """Whether a step may begin, see Note [Generations]."""
        return self._generations.may_begin()

    def set_to_running_backward(self) -> None:
        """A backward runs that is not in a tree: the step is released."""
        self._generations.pending_backward = False

    # ---- reasons not to record

    def _look_for_reasons_against(
        self, place: tuple[int | None, Function], inputs: list[Input]
    ) -> None:
        function = place[1]
        node = self._node
        bad = []
        elsewhere = None
        if self.device.address_bound:
            support = compat.triton_config.cudagraph_support_input_mutation
            bad = [
                i
                for i in function.mutated_input_idxs
                if i not in function.static_input_idxs
                and not (
                    support
                    and node is not None
                    and isinstance(inputs[i], torch.Tensor)
                    and node._is_cuda_graph_recorded_tensor(inputs[i])
                )
            ]
            elsewhere = next(
                (
                    f"input {i} is on {t.device}: a recording would keep the value that it has now"
                    for i, t in enumerate(inputs)
                    if isinstance(t, torch.Tensor)
                    and t.device != self.pool.device
                    and t.numel() > 0
                ),
                None,
            )
        self._skipped[place] = elsewhere or ("it writes to inputs that graphs copy" if bad else "")
        if elsewhere and function not in self._warned_mutation:
            self._warned_mutation.add(function)
            compat.announce_skip(f"skipping cudagraphs due to {elsewhere}")
        if bad and function not in self._warned_mutation:
            self._warned_mutation.add(function)
            compat.announce_skip(compat.mutation_message(function.placeholders, bad))

    def _exceeds_limit(self, place: tuple[int | None, Function]) -> bool:
        limit: int = compat.triton_config.cudagraph_unexpected_rerecord_limit
        return self._rerecorded.get(place, 0) > limit

    def _demote(
        self, place: tuple[int | None, Function], latest: CUDAGraphNode, inputs: list[Input]
    ) -> None:
        """Copy managed inputs from now on that have kept moving."""
        config = compat.triton_config
        counts = self._churn.setdefault(place, {})
        limit: int = config.cudagraph_managed_input_rerecord_limit
        demoted = self._demoted.get(place, frozenset())
        for i in latest.moved_managed(inputs):
            counts[i] = counts.get(i, 0) + 1
            if counts[i] >= limit and i not in demoted:
                if config.cudagraph_managed_input_rerecord_action == "skip":
                    self._skipped[place] = f"input {i}, made by a graph, keeps moving"
                    continue
                demoted |= {i}
                self.note(
                    LedgerKind.DEMOTION,
                    place[1],
                    f"input {i}, made by a graph, was elsewhere at {counts[i]} recordings; it is "
                    "copied from now on",
                    parent=place[0],
                )
        self._demoted[place] = demoted

    def mark_warmup_incomplete(self) -> None:
        """Warm the function up once more that is being warmed up now."""
        if self._active_warm_up is not None:
            self.warmed_up_functions.discard(self._active_warm_up.id)

    # ---- what is where

    @property
    def current_node(self) -> CUDAGraphNode | CUDAWarmupNode | None:
        return self._node

    @current_node.setter
    def current_node(self, node: CUDAGraphNode | CUDAWarmupNode | None) -> None:
        self._node = node
        if node is None:
            self._state = _NONE

    @property
    def path_state(self) -> ExecutionState:
        return self._state

    @property
    def in_recording(self) -> bool:
        return self._state is _RECORDING

    @property
    def in_warmup(self) -> bool:
        return self._state is _WARMUP

    @property
    def running_forwards_with_pending_backwards(self) -> bool:
        return self._generations.pending_backward

    @property
    def current_gen(self) -> int:
        return self._generations.last

    @property
    def cuda_graphs_thread_pool(self) -> Any:
        """The pool's handle."""
        return self.pool.handle

    def get_roots(self) -> Iterator[CUDAGraphNode]:
        """All roots."""
        for nodes in self.roots.values():
            yield from nodes

    def nodes(self) -> Iterator[CUDAGraphNode]:
        """All recordings, parents before children."""
        stack = list(self.get_roots())[::-1]
        while stack:
            node = stack.pop()
            yield node
            for children in node.children.values():
                stack.extend(children[::-1])

    def new_graph_id(self) -> GraphID:
        """The next number of a recording; it is used up."""
        return GraphID(next(self.graph_counter))

    def live_cudagraph_pool_storages_in_curr_execution(self) -> list[int]:
        """Pointers to the live storages of the current path."""
        if self._node is None:
            return []
        return [r.pointer for r in self._node.path_live_weakrefs()]

    def entries(self) -> list[LedgerEntry]:
        """The ledger, replays included."""
        return self.ledger.entries(self.nodes())

    def note(
        self,
        kind: LedgerKind,
        function: Function | None,
        reason: str,
        **more: Any,
    ) -> None:
        """Write an entry to the ledger."""
        self.ledger.add(kind, function, reason, step=self.step, **more)

    def leaves(self) -> Iterator[torch.Tensor]:
        """Parameters that recordings read, as far as they still exist."""
        for ref in list(self._leaves.values()):
            t = ref()
            if t is not None:
                yield t

    def _remember_leaves(self, function: Function, inputs: list[Input]) -> None:
        if compat.can_swap_storage() or function.mode is not _FORWARD:
            return
        from torch.utils.weak import TensorWeakRef

        for i in function.static_input_idxs:
            t = inputs[i]
            if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad:
                self._leaves[id(t)] = TensorWeakRef(t)

    def _node_number(self) -> int | None:
        return None if self._node is None else self._node.id.id

    def _path_addresses(self) -> set[int]:
        if self._node is None:
            return set()
        return {r.address for refs in self._node.path_weakrefs for r in refs if r is not None}

    def shutdown(self) -> None:
        """Drop all recordings. Outputs that are held stay valid and own their memory."""
        if not self.alive:
            return
        self.alive = False
        with capture_lock:
            if self._node is not None and self._state is _EXECUTION:
                node = self._node
                assert isinstance(node, CUDAGraphNode)
                node.remove_path_cached_tensors()
                live: dict[int, int] = {}
                for r in node.path_live_weakrefs():
                    live.setdefault(r.address, r.pointer)
                if live:
                    self.pool.restore(
                        node.checkpoint, list(live.values()), node.dead_since_recording()
                    )
            for n in list(self.nodes()):
                self.ledger.retire(n)
                n.release()
            self.roots.clear()
            self._roots.clear()
            self.current_node = None
            self.pool.release()

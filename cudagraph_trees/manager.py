"""The tree: which function runs how, and when paths end.

See Note [The four states].
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from memprof.profiler.model import GraphRecord, LedgerEntry, LedgerKind, TreeCause

from . import _torch_compat as compat
from . import history, recording, torch_logs
from .budget import Budget
from .device.protocol import Device, Input, Model, Output
from .forwards import PlainForwards
from .function import CompilationMode, Function, FunctionID, GraphID
from .generations import Generations
from .inputs import CheckInvariantStatus
from .leaves import Leaves
from .ledger import TreeLedger
from .locks import capturing
from .moves import Moves
from .node_recorded import CUDAGraphNode
from .node_replay import CalledOff
from .node_warmup import CUDAWarmupNode
from .path_end import end_path, end_path_quickly, takes_gradients, warn_if_stuck
from .path_state import ExecutionState
from .places import Place, Places
from .recording import run_plainly, warm_up
from .settings import TreeSettings, current_settings
from .starting_over import OwnsPool
from .stopping import Cause, bury, refusal
from .torch_names import ManagerNames
from .torch_options import TreeOptions

MAX_FAILURES = 2
"""A function whose warm-up or recording failed so often runs without a graph for good."""


_NONE = ExecutionState.NONE
_WARMUP = ExecutionState.WARMUP
_RECORDING = ExecutionState.RECORDING
_EXECUTION = ExecutionState.EXECUTION
_FORWARD = CompilationMode.FORWARD
_BACKWARD = CompilationMode.BACKWARD


class ManagerGone(Exception):
    """The manager of a wrapped function was shut down; the call was not begun."""


class CUDAGraphTreeManager(OwnsPool, ManagerNames):
    """All recordings that share one pool.

    Attributes:
        roots: recordings that nothing precedes, by function.
        current_node: the node that ran last, None if there is no path.
        path_state: see Note [The four states].
        ids_to_funcs: all wrapped functions.
        warmed_up_functions: those that may be recorded.
        graph_counter: numbers recordings.
        debug_checkpointing_counter: how often the allocator's books were restored.
        debug_fail_counter: how often a function had to be recorded or warmed up.
        step: number of the step that runs, from 1.
        budget: the limit on the pool.
        ledger: everything that was done.
        places: why functions are not recorded where.
        leaves: parameters that forwards read.
        moves: what is known about static inputs that move.
        stopped: compiled graphs of which nothing is recorded any more, and why.
        dead: functions that nobody can call any more, and that were not let go of altogether.
        failures: how often the warm-up or recording of a function failed.
        active_warm_up: the function that is being warmed up now.
        given: what the graph that runs was given and lay in live outputs when it was called, see
            Note [Graphs in parts].
        plain_forwards: see there.
    """

    def __init__(self, device: Device, settings: TreeSettings | None = None) -> None:
        super().__init__()
        self.device = device
        self.device_index = device.device.index or 0
        self.settings = settings if settings is not None else current_settings()
        with capturing():
            self.pool = device.create_pool(self.settings.pool_initial)
        self.ledger = TreeLedger(str(device.device))
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
        self.places = Places()
        self.moves = Moves()
        self.stopped: dict[object, str] = {}
        self.dead: set[Function] = set()
        self.leaves = Leaves()
        self.failures: dict[Function, int] = defaultdict(int)
        self._given_up: dict[Function, str] = {}
        self.active_warm_up: Function | None = None
        self.given: list[TensorWeakRef] = []
        self.plain_forwards = PlainForwards()
        self._generations = Generations()
        self._mark, self._tracker = self._generations.mark, self._generations.tracker
        self._roots: dict[Function, list[CUDAGraphNode]] = {}
        self._node: CUDAGraphNode | CUDAWarmupNode | None = None
        self._state = _NONE
        self.warned_pending: set[Function] = set()
        compat.set_cached_tensors_enabled(True)

    # ---- functions

    def wrap(
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
        graph_inputs: tuple[int | None, ...] | None = None,
        graph_outputs: tuple[int | None, ...] | None = None,
        alignment_checked: Sequence[int] = (),
        clone_outputs: bool = False,
        options: TreeOptions | None = None,
    ) -> functools.partial[list[Output]]:
        """``call`` of a function that is made of these. ``inputs`` are those of its first call."""
        options = TreeOptions.of_this_compilation() if options is None else options
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
            graph_inputs=graph_inputs,
            clone_outputs=(
                clone_outputs or self.settings.outputs == "clone" or options.clones_outputs
            ),
            options=options,
        )
        function.loose = tuple(
            i
            for i, x in enumerate(inputs)
            if i not in function.static_input_idxs and isinstance(x, torch.Tensor)
        )
        self.ids_to_funcs[function.id] = function
        if function.compile_id in self.stopped:
            self.give_up(function, self.stopped[function.compile_id])
        self.leaves.remember(function, inputs)
        return functools.partial(self.call, function)

    def run(self, inputs: list[Input], function_id: FunctionID) -> list[Output]:
        """Call a wrapped function by its number."""
        return self.call(self.ids_to_funcs[function_id], inputs)

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
                if (
                    end_path_quickly(self, node, inputs, function)  # type: ignore[arg-type]
                    or node.all_outputs_are_dead()
                ):
                    self._node = node = None
                    self._state = _NONE
                elif not takes_gradients(node, function, inputs):
                    end_path(self, inputs, function)
                    node = None
            children = self._roots if node is None else node.by_function  # type: ignore[union-attr]
            for child in children.get(function, ()):
                if child.fits(inputs):
                    if node is None:
                        self.step += 1
                    self._node = child
                    self._state = _EXECUTION
                    before, generations.last = generations.last, generation
                    child.replays += 1
                    try:
                        outputs = child.replay.run(inputs)
                    except BaseException as e:
                        # Nothing was handed out: it is as if it had not been called.
                        if node is None:
                            self.step -= 1
                        self._node = node
                        self._state = _NONE if node is None else _EXECUTION
                        child.replays -= 1
                        if not isinstance(e, CalledOff):
                            generations.last = before
                            raise
                        inputs[:] = e.inputs
                        continue
                    if function.mode is _FORWARD:
                        generations.pending_backward = True
                        if self.plain_forwards:
                            self.plain_forwards.forget(function)
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
            raise ManagerGone("this manager of CUDA graph trees was shut down")
        if self._state is _RECORDING or self._state is _WARMUP:
            self.try_end_curr_recording(function, inputs)
            if self._node is None and self._roots.get(function):
                return self.call(function, inputs)
        if self.budget.over:
            self.try_end_curr_execution(function, inputs)
            if self._node is None:
                with capturing():
                    self.budget.enforce(self)
        if self.dead:
            self.try_end_curr_execution(function, inputs)
            bury(self)
        if self.resting:
            self.rested()  # of those that run without a graph, too: the last step's memory goes
        if self.failures[function] >= MAX_FAILURES:
            why = self._given_up.get(function, "warm-up or recording failed before")
            return run_plainly(self, function, inputs, why)
        if function.mode is _BACKWARD and function.compile_id in self.plain_forwards:
            why = "its forward ran without a graph"
            return run_plainly(self, function, inputs, why, this_once=True)
        place = self._place(function)
        if why := self._reason_against(place, inputs):
            return run_plainly(self, function, inputs, why)
        if self.places.exceeds_limit(place):
            return run_plainly(self, function, inputs, "it was recorded too often at this place")

        if (
            (function.id not in self.warmed_up_functions and not function.options.skips_warm_up)
            or self._state is _WARMUP
            or function.options.only_warms_up
        ):
            if refused := refusal(self, function, inputs):
                return run_plainly(self, function, inputs, **refused.how())
            return warm_up(self, function, inputs)
        if self.device.address_bound and (
            why := self.places.input_elsewhere(function, inputs, self.pool.device)
        ):
            return run_plainly(self, function, inputs, why)

        reason, cause = "first recording", Cause()
        if self._state is not _RECORDING:
            outcome = self._execute_or_explain(function, inputs)
            if not isinstance(outcome, tuple):
                return outcome
            reason, cause = outcome
            place = self._place(function)
            if why := self.places.known_reason(place):
                return run_plainly(self, function, inputs, why)
            if self.places.exceeds_limit(place):
                return run_plainly(self, function, inputs, reason)
        if refused := refusal(self, function, inputs):
            return run_plainly(self, function, inputs, **refused.how())
        return recording.record(self, function, inputs, reason, cause)

    def _execute_or_explain(
        self, function: Function, inputs: list[Input]
    ) -> list[Output] | tuple[str, Cause]:
        """Replay a recording that fits, or say why none does and prepare to record."""
        node = self._node
        assert not isinstance(node, CUDAWarmupNode)
        existing = (self._roots if node is None else node.by_function).get(function, [])
        reason, counts, cause = "first recording", False, Cause()
        for child in existing:
            status, reason = child.mismatch(inputs)
            if status is CheckInvariantStatus.SUCCESS:
                # It was tried just now, and someone holds an input that must die.
                reason = "an input that died in the recording is still held"
            static = status is CheckInvariantStatus.StaticInputIdxMismatch
            counts = counts or not (static and compat.static_moves_are_exempt())
            moved = child.input_plan.moved(inputs, child.input_plan.relied_on(status))
            cause = Cause.of(TreeCause.MOVED, function, inputs, moved) if moved else Cause()
        if existing:
            torch_logs.no_recording_fits(function, reason)
        if node is not None and function in self._roots:
            self.try_end_curr_execution(function, inputs)
            if self._node is None:
                return self.call(function, inputs)
        place = self._place(function)
        if function.mutated_input_idxs and self._reason_against(place, inputs, again=True):
            return reason, cause
        if existing:
            for why in self.places.demote(place, existing[-1], inputs):
                self.note(LedgerKind.DEMOTION, function, why, parent=place[0])
        if counts:
            self.places.recorded_again(place)
            if self.places.exceeds_limit(place):
                self.places.warn_of_limit(place, reason)
                return f"re-recording limit reached: {reason}", cause
        self.debug_fail_counter += 1
        self.try_end_curr_execution(function, inputs)
        return reason, cause

    def _place(self, function: Function) -> Place:
        return (None if self._node is None else self._node.id.id), function

    def _reason_against(self, place: Place, inputs: list[Input], *, again: bool = False) -> str:
        if not self.device.address_bound:
            return ""
        return self.places.reason_against(place, inputs, self._node, again=again)

    # ---- what ``recording`` and ``budget`` tell

    def arrive(self, node: CUDAGraphNode | CUDAWarmupNode, state: ExecutionState) -> None:
        """``node`` has run; ``state`` is WARMUP or RECORDING."""
        self._node, self._state = node, state
        if node.wrapped_function.mode is _FORWARD:
            self.plain_forwards.forget(node.wrapped_function)
        self._generations.update()

    def add_node(
        self, function: Function, parent: CUDAGraphNode | None, node: CUDAGraphNode
    ) -> bool:
        """``node`` was recorded after ``parent``.

        Returns:
            Whether there were others of the same function there.
        """
        if parent is not None:
            again = bool(parent.by_function.get(function))
            parent.add_child(function, node)
            return again
        again = bool(self._roots.get(function))
        self.roots[function.id].append(node)
        self._roots[function] = self.roots[function.id]
        return again

    def forget(self, function: Function) -> None:
        """``function`` is gone: nothing is known of it, and it has no roots."""
        self.ids_to_funcs.pop(function.id, None)
        self.warmed_up_functions.discard(function.id)
        self.failures.pop(function, None)
        self._given_up.pop(function, None)
        self.warned_pending.discard(function)
        if function.mode is _FORWARD:
            self.plain_forwards.forget(function)
        self.moves.forget(function)
        self.places.forget_function(function)
        # New ones: a collector may have come by in the midst of a walk over them.
        roots = {id: nodes for id, nodes in self.roots.items() if nodes or id != function.id}
        self.roots = defaultdict(list, roots)
        self._roots = {f: nodes for f, nodes in self._roots.items() if nodes or f is not function}

    def books_are_right(self) -> None:
        """The allocator's books were restored after a replay; see Note [Failures]."""
        self._state = _RECORDING

    def give_up(self, function: Function, why: str) -> None:
        """``function`` runs without a graph from now on, and each time the ledger says ``why``."""
        self.failures[function] = MAX_FAILURES
        self._given_up[function] = why

    # ---- the ends of paths

    def try_end_curr_recording(self, function: Function | None, inputs: list[Input]) -> None:
        """End the recording if a new step begins or nobody holds its outputs."""
        node = self._node
        assert node is not None
        if self.can_start_new_generation() and not takes_gradients(node, function, inputs):
            end_path(self, inputs, function)
        elif node.all_outputs_are_dead():
            self.current_node = None
        elif function is not None:
            warn_if_stuck(self, function)

    try_end_curr_warmup = try_end_curr_recording

    def try_end_curr_execution(self, function: Function | None, inputs: list[Input]) -> None:
        """End the execution if a new step begins or nobody holds its outputs."""
        node = self._node
        if node is None:
            return
        if node.all_outputs_are_dead():
            self.current_node = None
        elif self.can_start_new_generation() and not takes_gradients(node, function, inputs):
            end_path(self, inputs, function)

    def generation_moved(self) -> bool:
        """Whether something ran in another generation than this one."""
        return self._generations.moved()

    def can_start_new_generation(self) -> bool:
        """Whether a step may begin, see Note [Generations]."""
        return self._generations.may_begin()

    def ran_outside(self) -> None:
        """A function ran without a graph: it belongs to the step that runs, unless one may
        begin. Otherwise, a pending backward that comes after it would be taken for a new step."""
        if not self.can_start_new_generation():
            self._generations.update()

    def set_to_running_backward(self) -> None:
        """A backward runs that is not in a tree: the step is released."""
        self._generations.pending_backward = False

    def mark_warmup_incomplete(self) -> None:
        """Warm the function up once more that is being warmed up now."""
        if self.active_warm_up is not None:
            self.warmed_up_functions.discard(self.active_warm_up.id)

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

    def nodes(self) -> Iterator[CUDAGraphNode]:
        """All recordings, parents before children; one that is added meanwhile may be missing.

        The thread that writes a profile comes by here while others record. It takes no lock, which
        would hold it up for as long as a capture lasts and leave it what finalizers put off
        (``locks``): ``list`` copies a dictionary's values or a list in one step of the interpreter.
        """
        stack = [node for nodes in list(self.roots.values()) for node in list(nodes)][::-1]
        while stack:
            node = stack.pop()
            yield node
            for children in list(node.children.values()):
                stack.extend(list(children)[::-1])

    def new_graph_id(self) -> GraphID:
        """The next number of a recording; it is used up."""
        return GraphID(next(self.graph_counter))

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

    def shutdown(self) -> None:
        """Drop all recordings. Outputs that are held stay valid and own their memory."""
        if not self.alive:
            return
        self.alive = False
        with capturing():
            if self._node is not None and self._state is _EXECUTION:
                node = self._node
                assert isinstance(node, CUDAGraphNode)
                node.remove_path_cached_tensors()
                if next(node.path_live_weakrefs(), None) is not None:
                    node.restore_pool()
            for n in list(self.nodes()):
                self.ledger.retire(n)
                n.release()
            self.roots.clear()
            self._roots.clear()
            self.current_node = None
            self.pool.release()

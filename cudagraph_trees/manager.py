"""The manager: how each call runs.

It alone puts the parts together. They are handed what they need, return what they have made, and
none of them knows it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

from torch.utils.weak import TensorWeakRef

from memprof.profiler.device.where import line_of_caller
from memprof.profiler.model import LedgerEntry, LedgerKind, TreeCause

from . import _torch_compat as compat
from .capture_lock import capturing
from .device.cuda import CudaDevice, CudaPool
from .device.protocol import Input, Output
from .moves import Moves, copyable, nbytes_of
from .node import CUDAGraphNode, Node, number_of, path_addresses, path_to
from .path import ExecutionState
from .pool_owner import PoolOwner
from .record_policy import cause_of, misfit_of
from .recorder import Recorder
from .settings import TreeSettings
from .spec import CompilationMode, FunctionSpec, GraphSpec, Why
from .step_end import ParameterRefs, StepEnd, continues_step, end_quickly, is_stuck

_EXECUTION = ExecutionState.EXECUTION
_RECORDING = ExecutionState.RECORDING
_WARMUP = ExecutionState.WARMUP


class ManagerGone(Exception):
    """The manager of a wrapped function was shut down; the call was not begun."""


class CUDAGraphTreeManager:
    """All recordings that share one pool, and the calls that they serve.

    Attributes:
        dead: functions that nobody can call any more, and that were not let go of altogether.
        given: what the graph that runs was given and lay in live outputs when it was called, see
            Note [Graphs in parts].
    """

    def __init__(self, device: CudaDevice, settings: TreeSettings) -> None:
        self.device = device
        self.settings = settings
        self.owner = owner = PoolOwner(device, self.settings)
        self.functions = owner.functions
        self.path = owner.path
        self.tree = owner.tree
        self.policy = owner.policy
        self.ledger = owner.ledger
        self.moves = Moves()
        self.parameters = ParameterRefs()
        self.recorder = Recorder(owner, self.moves, self.parameters)
        self.dead: set[FunctionSpec] = set()
        self.given: Sequence[TensorWeakRef] = ()
        self.alive = True
        self._function_numbers = itertools.count()
        compat.set_cached_tensors_enabled(True)

    @property
    def pool(self) -> CudaPool:
        return self.owner.pool

    # ---- functions

    def add(
        self,
        spec: GraphSpec,
        inputs: list[Input],
        static: Sequence[int],
        alignment_checked: Sequence[int],
    ) -> FunctionSpec:
        """The function of a graph for ``inputs``, those of its first call."""
        clone = self.settings.outputs == "clone"
        number = next(self._function_numbers)
        function = spec.function(number, inputs, static, alignment_checked, clone_outputs=clone)
        if (line := line_of_caller()) is not None:
            function.called_at = line.location
        if compat.checkpoint_runs():
            function.caller += " in torch.utils.checkpoint"
        self.functions.add(function)
        self.policy.added(function)
        self.parameters.remember(function, inputs)
        return function

    def function_died(self, function: FunctionSpec) -> None:
        """Nobody can call ``function`` any more: its model, constants and recordings go. What is on
        the path that runs stays in the tree, without its graph, until the path ends."""
        function.let_go()
        for node in path_to(self.path.node):
            if node.wrapped_function is function and isinstance(node, CUDAGraphNode):
                node.release_graph()
        self.dead.add(function)
        self._drop_the_dead()

    def _drop_the_dead(self) -> None:
        nodes = [n for n in self.nodes() if n.wrapped_function in self.dead]
        self.owner.drop(nodes, "its function is gone")

    def _bury(self) -> None:
        """Let go of the rest of the functions that have died, and of the pool if it was for
        them."""
        # Those that die meanwhile wait for the lock, and are let go of next time.
        with capturing():
            self._drop_the_dead()
            in_use = {n.wrapped_function for n in path_to(self.path.node)}
            buried = self.dead - in_use
            for function in buried:
                self.functions.discard(function)
                self.policy.ran_with_graph(function)
                self.moves.forget(function)
                self.tree.forget(function)
            self.dead -= buried
            self.owner.forget(buried)
            if not in_use and next(self.nodes(), None) is None:
                self.owner.give_back("the functions that it was for are gone")

    # ---- one call

    def call(self, function: FunctionSpec, inputs: list[Input]) -> list[Output]:
        """Run a function in the way that is right now; ``inputs`` are emptied. Hot: after a replay,
        or at the beginning, it looks for a recording that fits and replays it."""
        path = self.path
        node = path.node
        if node is None or path.state is _EXECUTION:
            fitting: CUDAGraphNode | None = None
            if node is not None and path.step_may_begin():
                # Found before the step ends, which wants to know it: one comparison for both.
                for root in self.tree.roots.get(function, ()):
                    if root.fits(inputs):
                        fitting = root
                        break
                if (
                    not self.given
                    and end_quickly(node, inputs, function, fitting is not None, path.step)  # type: ignore[arg-type]
                ) or node.all_outputs_are_dead():
                    path.end()
                    node = None
                else:
                    fitting = None
                    if not continues_step(node, path.settled, function, inputs):
                        self._end_step(function, inputs)
                        node = None
            if node is not None:
                children = node.children
            else:
                children = {} if self.owner.over_budget else self.tree.roots
            for child in children.get(function, ()):
                if child is fitting or child.fits(inputs):
                    if function.leaves:
                        self.parameters.remember_leaves(function, inputs)
                    outputs = path.replay(child, inputs)
                    if outputs is not None:
                        if self.policy.plain_forwards:
                            self.policy.ran_with_graph(function)
                        return outputs
        outputs = self._call_slowly(function, inputs)
        path.returned(function)
        return outputs

    def _call_slowly(self, function: FunctionSpec, inputs: list[Input]) -> list[Output]:
        if not self.alive:
            raise ManagerGone("this manager of CUDA graph trees was shut down")
        path, owner = self.path, self.owner
        if path.state in (_RECORDING, _WARMUP) or owner.over_budget or self.dead:
            self._try_end(function, inputs)
            if path.node is None and owner.over_budget:
                owner.enforce_budget()
            if self.dead:
                self._bury()
            if path.node is None and self.tree.roots.get(function):
                return self.call(function, inputs)
        if owner.resting:
            owner.rested()  # of those that run without a graph, too: the last step's memory goes
        known, options = function.state, function.options
        warms_up = (
            (not known.warmed_up and not options["skip_cudagraph_warmup"])
            or path.state is _WARMUP
            or options["force_cudagraphs_warmup"]
        )
        why = Why("first recording")
        refused = self._refusal_here(function, inputs)
        if refused is None and not warms_up:
            refused = self.policy.input_elsewhere(function, inputs, self.pool.device)
            if refused is None and path.state is not _RECORDING:
                node = path.node
                self._try_end(function, inputs)
                if node is not path.node and function in self.tree.roots:
                    return self.call(function, inputs)
                refused, why = self._misfit(function, inputs)
        if refused is None:
            refused = self._refusal_now(function, inputs)
        if refused is not None:
            return self.recorder.run_plainly(function, inputs, refused)
        if warms_up:
            return self.recorder.warm_up(function, inputs)
        return self.recorder.record(function, inputs, why)

    def _refusal_here(
        self, function: FunctionSpec, inputs: list[Input], *, again: bool = False
    ) -> Why | None:
        if self.owner.no_room:
            return Why(self.owner.no_room)
        if (refused := self.policy.refusal(function)) is not None:
            return refused
        if refused := self.policy.refusal_at(function, inputs, self.path.node, again=again):
            return refused
        if self.policy.exceeds_limit(function, self.path.node):
            return Why("it was recorded too often at this place")
        return None

    def _misfit(self, function: FunctionSpec, inputs: list[Input]) -> tuple[Why | None, Why]:
        """After a replay, or at a root: why a call runs without a graph, None if it need not; and
        why no recording fits."""
        node, policy = self.path.node, self.policy
        existing = self.tree.after(node).get(function, [])
        misfit, counts = misfit_of(existing, function, inputs)
        if existing:
            compat.graphs_log.debug(
                "[%s] Re-recording function=%s, mode=%s, reason=%s",
                function.compile_id,
                function.label,
                function.mode.name,
                misfit.reason,
            )
        if refused := self._refusal_here(function, inputs, again=bool(function.mutated_input_idxs)):
            return refused, misfit
        place = function.state.places[number_of(node)]
        if existing:
            for reason in policy.demote(function, node, existing[-1], inputs):
                self.ledger.add(LedgerKind.DEMOTION, function, reason, parent=number_of(node))
        place.misfits += counts
        if policy.exceeds_limit(function, node):
            policy.warn_of_limit(function, node, misfit.reason)
            return place.refusal or Why(f"re-recording limit reached: {misfit.reason}"), misfit
        return place.refusal, misfit

    def _refusal_now(self, function: FunctionSpec, inputs: list[Input]) -> Why | None:
        """Why a call must not be warmed up or recorded now; None if nothing speaks against it. If
        inputs keep moving, and ``cudagraph_or_error`` is on, it raises."""
        if self.pool.damaged:
            self.owner.give_back("the pool was damaged")
        if self.pool.damaged:
            return Why("there is no pool")
        if not self.owner.rested():
            return Why("the pool was given back in this step", this_once=True)
        if self.path.node is None and self.owner.lacks_room(function):
            return Why(self.owner.no_room)
        # The lock keeps finalizers from releasing recordings in the midst of a look at them.
        with capturing():
            return self._refusal_for_moves(function, inputs)

    def _refusal_for_moves(self, function: FunctionSpec, inputs: list[Input]) -> Why | None:
        node, owner = self.path.node, self.owner
        step = self.path.step + (node is None)
        above = path_addresses(node)
        moving, worthless = self.moves.look(function, inputs, above, step, self.nodes)
        owner.drop(worthless, "what it reads has gone")
        if not moving:
            return None
        cause = cause_of(TreeCause.KEEPS_MOVING, function, inputs, moving)
        every = nbytes_of(inputs, function.static_input_idxs)
        names = function.names_of_inputs(moving)
        what = f"inputs keep moving: {names}, {cause['nbytes']} bytes of {every} in static inputs"
        if copyable(function, inputs, moving):
            function.copy_from_now_on(moving)
            self.moves.forget(function)
            recordings = [n for n in self.nodes() if n.wrapped_function is function]
            owner.drop(recordings, "an input that it reads in place is copied from now on")
            reason = f"{what}; that is little: they are copied from now on"
            self.ledger.add(LedgerKind.DEMOTION, function, reason, **cause)
            return None
        why = f"{what}; nothing of this graph is recorded any more"
        self.policy.stop(function, why)
        owner.give_back(why)
        message = f"skipping cudagraphs of {function.label} due to {why}"
        compat.announce_skip(message, function.options.or_error)
        return Why(why, cause)

    def ran_unwrapped(self, function: FunctionSpec, reason: str) -> None:
        """A function is about to run that is not one of the manager's, and ``reason`` is why."""
        self.path.ran_without_graph()
        if function.mode is CompilationMode.BACKWARD:
            self.path.backward_ran()
        self.policy.ran_plainly(function)
        self.ledger.add(LedgerKind.SKIP, function, reason)

    # ---- the ends of steps

    def _try_end(self, function: FunctionSpec, inputs: list[Input]) -> None:
        """End the path if a new step begins or nobody holds its outputs."""
        path, node = self.path, self.path.node
        if node is None:
            return
        if node.all_outputs_are_dead():
            path.end()
        elif path.step_may_begin() and not continues_step(node, path.settled, function, inputs):
            self._end_step(function, inputs)
        elif path.state is not _EXECUTION:
            self._warn_if_stuck(node, function)

    def _end_step(self, function: FunctionSpec, inputs: list[Input]) -> None:
        node, step = self.path.node, self.path.step
        assert node is not None
        pool, ledger = self.pool, self.ledger
        StepEnd(node, step, inputs, function, self.given, self.parameters, pool, ledger).end()
        self.path.end()

    def _warn_if_stuck(self, node: Node, function: FunctionSpec) -> None:
        state = function.state
        if state.warned_stuck or not self.path.generation_moved() or not is_stuck(node, function):
            return
        state.warned_stuck = True
        warnings.warn(
            "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards: "
            "outputs from a previous step still require backward. Consider running with "
            "torch.no_grad(), detaching outputs, or using "
            "torch.compiler.cudagraph_mark_step_begin() before each model invocation.",
            stacklevel=2,
        )

    # ---- what torch calls by these names

    @property
    def current_node(self) -> Node | None:
        """The node that ran last: Dynamo asks it when it compiles an optimizer."""
        return self.path.node

    def set_to_running_backward(self) -> None:
        """A backward runs that is not in the tree: none is pending any more."""
        self.path.backward_ran()

    # ---- what is there

    def nodes(self) -> Iterator[CUDAGraphNode]:
        return self.tree.nodes()

    def entries(self) -> list[LedgerEntry]:
        return self.ledger.entries(self.nodes())

    def shutdown(self) -> None:
        """Drop all recordings. Outputs that are held stay valid and own their memory."""
        if self.alive:
            self.alive = False
            self.owner.shut_down()

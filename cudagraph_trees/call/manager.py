"""The manager: how each call runs.

It alone puts the parts together. They are handed what they need, return what they have made, and
none of them knows it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch.utils.weak import TensorWeakRef

from memprof.profiler.model import LedgerEntry, LedgerKind
from memprof.profiler.sources.allocator.where import line_of_caller

from .. import _torch_compat as compat
from ..device.capture_lock import capturing
from ..device.cuda import CudaPool
from ..device.protocol import Input, Output
from ..record.policy import Call, RecordPolicy
from ..record.pool_owner import PoolOwner
from ..record.recorder import GraphRecorder
from ..replay.node import CUDAGraphNode, Node, path_to
from ..replay.path import ExecutionState
from ..replay.spec import CompilationMode, FunctionSpec, GraphSpec
from ..steps.step_end import ParameterRefs, StepEnd, continues_step, end_quickly, is_stuck

_EXECUTION = ExecutionState.EXECUTION


class ManagerGone(Exception):
    """The manager of a wrapped function was shut down; the call was not begun."""


class CUDAGraphTreeManager:
    """All recordings that share one pool, and the calls that they serve.

    Attributes:
        dead: functions that nobody can call any more, and that were not let go of altogether.
        given: what the graph that runs was given and lay in live outputs when it was called, see
            Note [Graphs in parts].
    """

    def __init__(self, device: torch.device, pool_initial: int) -> None:
        self.owner = owner = PoolOwner(device, pool_initial)
        self.functions = owner.functions
        self.path = owner.path
        self.tree = owner.tree
        self.policy = RecordPolicy(owner)
        self.ledger = owner.ledger
        self.parameters = ParameterRefs()
        self.recorder = GraphRecorder(owner, self.policy, self.parameters)
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
        number = next(self._function_numbers)
        function = spec.function(number, inputs, static, alignment_checked)
        if (line := line_of_caller()) is not None:
            function.called_at = line.location
        if compat.checkpoint_runs():
            function.caller += " in torch.utils.checkpoint"
        self.functions.add(function)
        self.policy.added(function)
        self.parameters.remember(function, inputs)
        return function

    def function_died(self, function: FunctionSpec) -> None:
        """Drop the model, constants and recordings of ``function``, which nobody can call. What is
        on the path that runs stays in the tree, without its graph, until the path ends."""
        function.let_go()
        for node in path_to(self.path.node):
            if node.wrapped_function is function and isinstance(node, CUDAGraphNode):
                node.release_graph()
        self.dead.add(function)
        self._drop_the_dead()

    def _drop_the_dead(self) -> None:
        nodes = [n for n in self.nodes() if n.wrapped_function in self.dead]
        self.owner.drop(nodes, "its function is gone")

    def _forget_the_dead(self) -> None:
        """Let go of the rest of the functions that have died, and of the pool if it was for
        them."""
        # Those that die meanwhile wait for the lock, and are let go of next time.
        with capturing():
            self._drop_the_dead()
            in_use = {n.wrapped_function for n in path_to(self.path.node)}
            gone = self.dead - in_use
            for function in gone:
                self.functions.discard(function)
                self.policy.ran_with_graph(function)
                self.policy.moves.forget(function)
                self.tree.forget(function)
            self.dead -= gone
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
                    if not continues_step(node, path.at_backward, function, inputs):
                        self._end_step(function, inputs)
                        node = None
            children = self.tree.roots if node is None else node.children
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
        """Warm up, record, or run without a graph what no recording fits."""
        if not self.alive:
            raise ManagerGone("this manager of CUDA graph trees was shut down")
        path, node = self.path, self.path.node
        self._try_end(function, inputs)
        if self.dead:
            self._forget_the_dead()
        if node is not None and path.node is None and self.tree.roots.get(function):
            return self.call(function, inputs)
        options = function.options
        warms_up = (
            (not function.state.warmed_up and not options["skip_cudagraph_warmup"])
            or path.state is ExecutionState.WARMUP
            or options["force_cudagraphs_warmup"]
        )
        # After a recording nothing of what follows it was looked at.
        tried = not warms_up and path.state is not ExecutionState.RECORDING
        existing = self.tree.after(path.node).get(function, []) if tried else []
        call = Call(function, inputs, records=not warms_up, existing=existing)
        why_not = self.policy.why_not(call) or self.policy.prepare(call)
        if why_not is not None:
            if call.records and not why_not.this_once:
                self.owner.give_back_warm_ups()
            return self.recorder.run_plainly(function, inputs, why_not)
        if warms_up:
            return self.recorder.warm_up(function, inputs)
        return self.recorder.record(function, inputs, call.reason)

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
        elif path.step_may_begin() and not continues_step(node, path.at_backward, function, inputs):
            self._end_step(function, inputs)
        elif path.state is not _EXECUTION:
            self._warn_if_stuck(node, function)

    def _end_step(self, function: FunctionSpec, inputs: list[Input]) -> None:
        node = self.path.node
        assert node is not None
        StepEnd(
            node=node,
            step=self.path.step,
            inputs=inputs,
            next_function=function,
            given=self.given,
            parameters=self.parameters,
            pool=self.pool,
            add_entry=self.ledger.add,
        ).end()
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

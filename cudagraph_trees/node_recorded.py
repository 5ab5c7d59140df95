"""One recording: what was captured, and what of the path it relies on."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import TensorWeakRef

from . import _torch_compat as compat
from .device.protocol import TensorSpec
from .hand_out import HandOut
from .inputs import (
    CheckInvariantStatus,
    InputPlan,
    address_of,
    input_specs,
    live_path_outputs,
    reference_persistent,
)
from .liveness import (
    Liveness,
    OutputRefs,
    PathOutputIndex,
    all_dead,
    died,
    held,
    liveness_of,
    path_refs,
    refs_at,
)
from .node_program import program_of
from .node_replay import Replay
from .outputs import AliasesPriorGraphOutput, OutputPlan
from .pool_check import check_pool
from .storage_ref import StorageWeakRefWrapper
from .torch_names import NodeNames

if TYPE_CHECKING:
    from memprof.profiler.model import AllocationProgram

    from .device.protocol import CapturedRun, Checkpoint, Input, Output, Pool
    from .function import Function, FunctionID, GraphID


class CUDAGraphNode(NodeNames):
    """A recording of one function after one path.

    Attributes:
        wrapped_function: what was recorded.
        id: number of the recording.
        children: recordings that follow this one, by function.
        outputs_weakrefs: the outputs that lie in the pool. Never replaced, only changed.
        path_weakrefs: those of all nodes from the root to this one.
        recorded_liveness_before_graph, recorded_liveness_after_graph: liveness of the
            outputs of the path, before with this node's own left out.
        expected_dead_indices_before_graph: outputs that died between the end of the
            parent's recording and the beginning of this one.
        expected_dead_indices_after_graph: outputs that died during this recording.
        live_indices_after_graph: outputs that were live at its end.
        replays: how often it was replayed.
    """

    def __init__(
        self,
        function: Function,
        id: GraphID,
        parent: CUDAGraphNode | None,
        inputs: list[Input],
        pool: Pool,
        *,
        address_bound: bool,
        demoted: frozenset[int] = frozenset(),
        step: int = 0,
        check: bool = True,
        learn_program: bool = False,
        buffers: dict[int, TensorSpec] | None = None,
    ) -> None:
        """Record ``function``. ``inputs`` is emptied.

        Args:
            buffers: is told where the copies of copied inputs lie, once they are made.

        Raises:
            UntrackedMemory: ``check`` and the pool holds memory unknown to the path.
            Exception: what the function or the device raised. The pool is as
                ``Pool.capture`` leaves it after a failure.
        """
        self.wrapped_function = function
        self.id = id
        self.pool = pool
        self.address_bound = address_bound
        self._parent = None if parent is None else weakref.ref(parent)
        self.children: dict[FunctionID, list[CUDAGraphNode]] = defaultdict(list)
        self.by_function: dict[Function, list[CUDAGraphNode]] = {}
        self.step = step
        self.recorded_ns = 0
        self.replays = 0
        self.marginal_bytes = 0
        self.stack_traces = function.stack_traces
        self.outputs_weakrefs: OutputRefs = []
        self.tensor_weakrefs: list[TensorWeakRef | None] = []
        above = [] if parent is None else parent.path_weakrefs
        self.path_weakrefs: list[OutputRefs] = [*above, self.outputs_weakrefs]

        self.input_plan = InputPlan.of(
            function, inputs, above, demoted, address_bound=address_bound
        )
        self.recorded_liveness_before_graph: Liveness = liveness_of(above)
        self.expected_dead_indices_before_graph: list[PathOutputIndex] = (
            []
            if parent is None
            else died(parent.recorded_liveness_after_graph, self.recorded_liveness_before_graph)
        )
        persistent = reference_persistent(function, self.input_plan, inputs)
        in_pool = {i: TensorSpec.of(inputs[i]) for i in self.input_plan.managed}
        with pool.observing() if learn_program else nullcontext([]) as input_events:
            recording = self.input_plan.allocate(inputs, pool)
        self.specs = input_specs(self.input_plan, recording)
        if buffers is not None:
            buffers.update({i: self.specs[i] for i in self.input_plan.copied})
        self.buffers: list[Input] = [
            pool.tensor_at(TensorSpec.of(x)) if i in self.specs else None
            for i, x in enumerate(recording)
        ]
        if check:
            known = {a for i in self.input_plan.copied if (a := address_of(recording[i]))}
            known.update(r.address for r in path_refs(above) if not r.expired())
            check_pool(pool, known, function.options)
        with pool.observing() if learn_program else nullcontext([]) as events:
            self.run_handle: CapturedRun = pool.capture(function, recording)
        try:
            recording.clear()
            outputs = self.run_handle.outputs
            self.run_handle.outputs = None
            assert outputs is not None
            self._finish(outputs, above, persistent, check)
            if not self.run_handle.ran:
                self.run_handle.replay([])
        except BaseException:
            self.run_handle.release()
            raise
        self._lay_out()
        self.program: AllocationProgram | None = None
        self.workspaces: frozenset[int] = frozenset()
        self.addresses: tuple[int, ...] = ()
        if learn_program:
            try:
                self.program, self.workspaces, self.addresses = program_of(
                    function, self.specs | in_pool, outputs, [*input_events, *events]
                )
            except Exception:
                # The recording is good; only what a profile says of its inside is missing.
                compat.log.warning("no program of %s", function.label, exc_info=True)
        self.first_outputs: list[Output] | None = outputs

    # ---- recording

    def _finish(
        self,
        outputs: list[Output],
        above: list[OutputRefs],
        persistent: dict[int, StorageWeakRefWrapper],
        check: bool,
    ) -> None:
        self.expected_dead_indices_after_graph: list[PathOutputIndex] = died(
            self.recorded_liveness_before_graph, liveness_of(above)
        )
        self.output_plan = OutputPlan.of(outputs, above, persistent, self.pool, self.stack_traces)
        self.keep_inputs = [
            i
            for i, where in enumerate(self.input_plan.live_outputs)
            if where is not None
            and any(
                isinstance(a, AliasesPriorGraphOutput) and a.index == where
                for a in self.output_plan.alias
            )
        ]
        path = list(self._path_from_root)
        for a in self.output_plan.alias:
            if isinstance(a, AliasesPriorGraphOutput):
                depth, index = a.index
                path[depth].output_is_aliased(index)
        self.outputs_weakrefs.extend(self.output_plan.references(outputs))
        if not self.address_bound:
            # Replays make their outputs; those of the recording are the user's alone.
            self.output_plan.persistent = [None] * len(outputs)
        self.tensor_weakrefs = [
            None if r is None else TensorWeakRef(o)  # type: ignore[arg-type]
            for r, o in zip(self.outputs_weakrefs, outputs, strict=True)
        ]
        self.recorded_liveness_after_graph: Liveness = liveness_of(self.path_weakrefs)
        self.live_indices_after_graph: list[PathOutputIndex] = [
            (d, i)
            for d, live in enumerate(self.recorded_liveness_after_graph)
            for i, x in enumerate(live)
            if x
        ]
        self.checkpoint: Checkpoint = self.pool.checkpoint()
        own = {r.address for r in self.outputs_weakrefs if r is not None}
        # (bytes asked for, bytes of the block) of the outputs, by address.
        self.sizes = {
            block.address: (block.requested, block.nbytes)
            for segment in self.pool.segments()
            for block in segment.blocks
            if block.live and block.address in own
        }
        if check:
            known = {r.address for r in self.path_live_weakrefs()}
            check_pool(self.pool, known, self.wrapped_function.options)

    def _lay_out(self) -> None:
        """See Note [What is decided when]."""
        self.live_after = refs_at(self.path_weakrefs, self.live_indices_after_graph)
        self.hand_out = HandOut(
            self.wrapped_function,
            self.id.id,
            self.output_plan,
            self.outputs_weakrefs,
            self.path_weakrefs,
            self.pool,
        )
        hand_outs = [n.hand_out for n in self._path_from_root]
        self.live_after_slots = [
            (r, hand_outs[d], i)
            for (d, i), r in zip(self.live_indices_after_graph, self.live_after, strict=True)
        ]
        self.replay = Replay(
            self.run_handle,
            self.input_plan,
            self.buffers,
            self.specs,
            self.path_weakrefs,
            self.expected_dead_indices_before_graph,
            self.expected_dead_indices_after_graph,
            self.keep_inputs,
            self.hand_out,
            self.pool,
            address_bound=self.address_bound,
        )
        self.fits = self.replay.fits
        compat.count_copied_inputs(len(self.input_plan.copied))

    def output_is_aliased(self, index: int) -> None:
        """A descendant returns an alias of this output: no cached tensor for it any more."""
        self.output_plan.cacheable[index] = False
        self.hand_out.clear()

    def run_first_inputs(self) -> list[Output]:
        """What the recording itself returns. Once."""
        out, self.first_outputs = self.first_outputs, None
        assert out is not None
        return out

    def address_of_input(self, i: int) -> int:
        """Where the storage of a copied or managed input is."""
        return self.specs[i].address

    def mismatch(self, inputs: list[Input]) -> tuple[CheckInvariantStatus, str]:
        """Why it does not fit, and the details. Not hot."""
        plan, function = self.input_plan, self.wrapped_function
        for status in (
            CheckInvariantStatus.CudagraphManagedIdxMismatch,
            CheckInvariantStatus.StaticInputIdxMismatch,
        ):
            which = plan.relied_on(status)
            if which and not compat.pointers_equal(inputs, plan.pointers, which):
                return status, f"{status}.\n{plan.describe_moved(function, inputs, which)}"
        dead_before = self.replay.dead_before
        if dead_before and held(dead_before, path_refs(self.path_weakrefs)):
            status = CheckInvariantStatus.ExpectedDeadIndicesBeforeGraphMismatch
            return status, str(status)
        if self.replay.copies is not None and not self.replay.copies.fit(inputs):
            status = CheckInvariantStatus.CopiedInputSizeMismatch
            return status, str(status)
        return CheckInvariantStatus.SUCCESS, str(CheckInvariantStatus.SUCCESS)

    def moved_managed(self, inputs: list[Input]) -> list[int]:
        """Managed inputs that are somewhere else now and could be copied instead.

        Not if the function writes to any input: a copy would no longer share memory with
        another input that it may share it with at a later call.
        """
        if self.wrapped_function.mutated_input_idxs:
            return []
        static = set(self.wrapped_function.static_input_idxs)
        return [
            i
            for i in self.input_plan.managed
            if i not in static
            and i not in self.keep_inputs
            and inputs[i].data_ptr() != self.input_plan.pointers[i]
        ]

    # ---- the path

    @property
    def parent(self) -> CUDAGraphNode | None:
        """The node before it, None for a root."""
        return None if self._parent is None else self._parent()

    @property
    def _path_from_root(self) -> Iterator[CUDAGraphNode]:
        nodes: list[CUDAGraphNode] = []
        node: CUDAGraphNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return reversed(nodes)

    def path_live_weakrefs(self) -> Iterator[StorageWeakRefWrapper]:
        """All live outputs of the path."""
        for d, i in self.live_indices_after_graph:
            r = self.path_weakrefs[d][i]
            if r is not None and not r.expired():
                yield r

    def all_outputs_are_dead(self) -> bool:
        """Whether nobody holds any output of the path."""
        return all_dead(self.live_after) or not held(self.live_after, path_refs(self.path_weakrefs))

    def restore_pool(self) -> None:
        """Make the allocator's books say what memory says after a replay: what this recording
        left, less what has died since."""
        # Held until it is done: the garbage collector may come by.
        live: dict[int, torch.UntypedStorage] = {}
        for r in self.path_live_weakrefs():
            storage = compat.storage_from_weak(r.pointer)
            if storage is not None:
                live.setdefault(r.address, storage)
        dead = {r.address for r in self.live_after} - live.keys()
        self.pool.restore(self.checkpoint, [s._cdata for s in live.values()], dead)

    def remove_path_cached_tensors(self) -> None:
        """Drop the cached tensors of the path, so that memory can be reclaimed."""
        for node in self._path_from_root:
            node.hand_out.clear()

    def add_child(self, function: Function, node: CUDAGraphNode) -> None:
        """``node`` was recorded after this one."""
        self.children[function.id].append(node)
        self.by_function[function] = self.children[function.id]

    def num_descendants(self) -> int:
        """Number of recordings below this one."""
        return sum(1 + c.num_descendants() for cs in self.children.values() for c in cs)

    def release(self) -> None:
        """Drop the recording: cached tensors, memory outside the pool, graph, checkpoint."""
        self.hand_out.clear()
        self.output_plan.persistent.clear()
        self.run_handle.release()
        self.replay.release()
        self.checkpoint = None

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        address = address_of(t)
        return any(r.address == address for refs in self.path_weakrefs for r in refs if r)

    def _is_alias_of_live_recorded_tensor(self, t: torch.Tensor) -> PathOutputIndex | None:
        return live_path_outputs(self.path_weakrefs).get(address_of(t))

"""One recording and its replays.

Note [What is decided when]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
A replay should do no more than: compare addresses, look whether what was dead when the
node was recorded is dead now, copy inputs, launch, hand out. So everything a replay needs
is laid out when the node is recorded: ``checked`` and ``pointers`` for one comparison in
C++, ``dead_before`` and ``dead_after`` as flat lists of references rather than of
indices, the buffers of the grouped copy in order, the outputs in slots. What is left out
of a list then costs nothing at a replay.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import TensorWeakRef

from . import _torch_compat as compat
from .device.protocol import TensorSpec
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
)
from .node_program import program_of
from .outputs import AliasesPriorGraphOutput, HandOut, OutputAliasInfo, OutputPlan
from .storage_ref import StorageWeakRefWrapper

if TYPE_CHECKING:
    from memprof.profiler.model import AllocationProgram

    from .device.protocol import CapturedRun, Checkpoint, Input, Output, Pool
    from .function import Function, FunctionID, GraphID

_foreach_copy = compat.foreach_copy
_pointers_equal = compat.pointers_equal


class UntrackedMemory(RuntimeError):
    """Blocks of the pool are live that no output of the path explains."""


class StillHeld(Exception):
    """An input that died during the recording is held by someone at a replay.

    Attributes:
        inputs: the inputs of the call, rebuilt.
    """

    def __init__(self, inputs: list[Input]) -> None:
        super().__init__("an input that died when this was recorded is still held")
        self.inputs = inputs


class CUDAGraphNode:
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
        last_used: the manager's clock at the last replay.
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
        check_pool: bool = True,
        learn_program: bool = False,
    ) -> None:
        """Record ``function``. ``inputs`` is emptied.

        Raises:
            UntrackedMemory: ``check_pool`` and the pool holds memory unknown to the path.
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
        self.recorded_ns = time.time_ns()
        self.replays = 0
        self.last_used = 0
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
        self.buffers: list[Input] = [
            pool.tensor_at(TensorSpec.of(x)) if i in self.specs else None
            for i, x in enumerate(recording)
        ]
        if check_pool:
            self._check_pool(
                [r for refs in above for r in refs if r is not None and not r.expired()],
                [recording[i] for i in self.input_plan.copied],
            )
        with pool.observing() if learn_program else nullcontext([]) as events:
            self.run_handle: CapturedRun = pool.capture(function, recording)
        try:
            recording.clear()
            outputs = self.run_handle.outputs
            self.run_handle.outputs = None
            assert outputs is not None
            self._finish(outputs, above, persistent, check_pool)
            if not self.run_handle.ran:
                self.run_handle.replay([])
        except BaseException:
            self.run_handle.release()
            raise
        self._lay_out()
        self.program: AllocationProgram | None = None
        self.workspaces: frozenset[int] = frozenset()
        if learn_program:
            self.program, self.workspaces = program_of(
                function, self.specs | in_pool, outputs, [*input_events, *events]
            )
        self.first_outputs: list[Output] | None = outputs

    # ---- recording

    def _check_pool(self, live: list[StorageWeakRefWrapper], buffers: list[torch.Tensor]) -> None:
        known = {r.address for r in live}
        known.update(a for t in buffers if (a := address_of(t)))
        if self.pool.only_live(known):
            return
        # A tensor in a reference cycle is dead, only not collected yet.
        import gc

        gc.collect()
        actual = self.pool.live_addresses()
        if missing := known - actual:
            raise UntrackedMemory(
                f"outputs at {sorted(map(hex, missing))} should be allocated in pool "
                f"{self.pool.handle} and are not. This points at aliasing that the compiler "
                "or a custom operator's meta function did not declare."
            )
        if extra := actual - known:
            raise UntrackedMemory(
                f"Detected {len(extra)} tensor(s) in the cudagraph pool not tracked as outputs, at "
                f"{sorted(map(hex, extra))}. All live allocations must be tracked for correctness. "
                "Something that ran in the warm-up or the recording has kept a tensor: a cache "
                "in a custom operator, a global, a workspace."
            )

    def _finish(
        self,
        outputs: list[Output],
        above: list[OutputRefs],
        persistent: dict[int, StorageWeakRefWrapper],
        check_pool: bool,
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
        if check_pool:
            self._check_pool(list(self.path_live_weakrefs()), [])

    def _lay_out(self) -> None:
        """See Note [What is decided when]."""
        plan = self.input_plan
        self.checked = plan.checked
        self.pointers = plan.pointers
        self.dead_before = self._refs(self.expected_dead_indices_before_graph)
        self.dead_after = self._refs(self.expected_dead_indices_after_graph)
        self.live_after = self._refs(self.live_indices_after_graph)
        self.plain_copies = plan.plain
        self.plain_buffers = [self.buffers[i] for i in self.plain_copies]
        self.special = len(self.plain_copies) != len(plan.copied)
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
        self.fresh_refs = [(i, r) for i, r in enumerate(self.outputs_weakrefs) if r is not None]
        dying = set(self.expected_dead_indices_after_graph)
        passed = [(i, w) for i, w in enumerate(plan.live_outputs) if w is not None and w in dying]
        self.dying_inputs = [
            (i, r) for (i, w), r in zip(passed, self._refs([w for _, w in passed]), strict=True)
        ]
        self.dead_after_unpassed = self._refs(sorted(dying - {w for _, w in passed}))
        self.replay_run = self.run_handle.replay
        compat.count_copied_inputs(len(plan.copied))

    def _refs(self, indices: list[PathOutputIndex]) -> list[StorageWeakRefWrapper]:
        out = []
        for depth, i in indices:
            r = self.path_weakrefs[depth][i]
            assert r is not None
            out.append(r)
        return out

    def output_is_aliased(self, index: int) -> None:
        """A descendant returns an alias of this output: no cached tensor for it any more."""
        self.output_plan.cacheable[index] = False
        self.hand_out.clear()

    def run_first_inputs(self) -> list[Output]:
        """What the recording itself returns. Once."""
        out, self.first_outputs = self.first_outputs, None
        assert out is not None
        return out

    # ---- replay

    def fits(self, inputs: list[Input]) -> bool:
        """Whether the recording is right for this call. Hot."""
        return (not self.checked or _pointers_equal(inputs, self.pointers, self.checked)) and (
            not self.dead_before
            or all_dead(self.dead_before)
            or not held(self.dead_before, self.siblings())
        )

    def replay(self, inputs: list[Input]) -> list[Output]:
        """Run it on inputs that it fits. ``inputs`` is emptied. Hot.

        Raises:
            StillHeld: someone holds an input that died in the recording. Nothing was
                launched.
        """
        sources = [inputs[i] for i in self.plain_copies]
        if self.special:
            self._copy_special(inputs)
        if sources:
            _foreach_copy(self.plain_buffers, sources)
            del sources
        kept = [inputs[i] for i in self.keep_inputs] if self.keep_inputs else None
        if self.dead_after:
            self._let_die(inputs)
        outputs = self.replay_run(inputs)
        inputs.clear()
        if outputs is None:
            outputs = self.hand_out.outputs()
        else:
            for i, ref in self.fresh_refs:
                ref.rebind(outputs[i])  # type: ignore[arg-type]
        del kept
        return outputs

    def _let_die(self, inputs: list[Input]) -> None:
        """Let go of inputs that died in the recording; nobody else may hold them.

        Raises:
            StillHeld: someone does.
        """
        if self.address_bound:
            self._release(inputs)
            if not all_dead(self.dead_after) and held(self.dead_after, self.siblings()):
                raise StillHeld(self._rebuild_inputs(inputs))
            return
        # The run itself will drop them: now they must have no holder but the list.
        for i, ref in self.dying_inputs:
            if sys.getrefcount(inputs[i]) > 2 or compat.storage_use_count(ref.pointer) > 2:
                raise StillHeld(list(inputs))
        if not all_dead(self.dead_after_unpassed) and held(self.dead_after_unpassed):
            raise StillHeld(list(inputs))

    def _release(self, inputs: list[Input]) -> None:
        """Let go of inputs that the launch does not read through Python."""
        for i in self.input_plan.managed:
            inputs[i] = None
        for i in self.input_plan.copied:
            inputs[i] = None

    def _copy_special(self, inputs: list[Input]) -> None:
        plain = set(self.plain_copies)
        rest = [i for i in self.input_plan.copied if i not in plain]
        InputPlan.copy(
            InputPlan(
                managed=[],
                static=[],
                copied=rest,
                checked=[],
                pointers=[],
                expanded=self.input_plan.expanded,
                overlapping=self.input_plan.overlapping,
                live_outputs=[],
            ),
            self.buffers,
            inputs,
        )

    def _rebuild_inputs(self, inputs: list[Input]) -> list[Input]:
        """Inputs of a call that was called off after ``_release``.

        Copied values are in the buffers, which the next recording may reuse: clones.
        """
        out = list(inputs)
        for i in self.input_plan.managed:
            out[i] = self.pool.tensor_at(self.specs[i])
        for i in self.input_plan.copied:
            out[i] = self.buffers[i].clone()
        return out

    def address_of_input(self, i: int) -> int:
        """Where the storage of a copied or managed input is."""
        return self.specs[i].address

    def siblings(self) -> list[StorageWeakRefWrapper]:
        """All outputs of the path: a stale autograd graph of one may hold another."""
        return [r for refs in self.path_weakrefs for r in refs if r is not None]

    def mismatch(self, inputs: list[Input]) -> tuple[CheckInvariantStatus, str]:
        """Why it does not fit, and the details. Not hot."""
        plan, function = self.input_plan, self.wrapped_function
        for which, status in (
            (plan.managed, CheckInvariantStatus.CudagraphManagedIdxMismatch),
            (plan.static, CheckInvariantStatus.StaticInputIdxMismatch),
        ):
            if which and not compat.pointers_equal(inputs, self.pointers, which):
                return status, f"{status}.\n{plan.describe_moved(function, inputs, which)}"
        if self.dead_before and held(self.dead_before, self.siblings()):
            status = CheckInvariantStatus.ExpectedDeadIndicesBeforeGraphMismatch
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
            and inputs[i].data_ptr() != self.pointers[i]
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
        return all_dead(self.live_after) or not held(self.live_after, self.siblings())

    def dead_since_recording(self) -> set[int]:
        """Addresses that were live at the end of the recording and are not any more."""
        live = {r.address for r in self.path_live_weakrefs()}
        return {r.address for r in self.live_after} - live

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
        """Drop the recording: cached tensors, graph, checkpoint."""
        self.hand_out.clear()
        self.run_handle.release()
        self.checkpoint = None

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        address = address_of(t)
        return any(r.address == address for refs in self.path_weakrefs for r in refs if r)

    def _is_alias_of_live_recorded_tensor(self, t: torch.Tensor) -> PathOutputIndex | None:
        return live_path_outputs(self.path_weakrefs).get(address_of(t))

    # ---- torch's names for what is kept in another form here

    @property
    def output_storage_alias(self) -> list[OutputAliasInfo | None]:
        return self.output_plan.alias

    @property
    def unaliased_in_all_paths(self) -> list[bool]:
        return self.output_plan.cacheable

    @property
    def static_output_tensors(self) -> list[torch.Tensor | None]:
        return self.output_plan.persistent

    @property
    def cached_tensor_outputs(self) -> list[torch.Tensor | None]:
        slots = self.hand_out.slots
        return [
            t if r is not None and r.cache is not None else None  # type: ignore[misc]
            for t, r in zip(slots, self.outputs_weakrefs, strict=False)
        ]

    @property
    def static_input_data_ptrs(self) -> list[int | None]:
        return self.pointers

    @property
    def cudagraph_managed_idxs(self) -> list[int]:
        return self.input_plan.managed

    @property
    def static_input_idxs(self) -> list[int]:
        return sorted({*self.wrapped_function.static_input_idxs, *self.input_plan.managed})

    @property
    def non_static_input_idx(self) -> list[int]:
        return self.input_plan.copied

    @property
    def graph(self) -> object:
        """The device's recording; on CUDA a ``torch.cuda.CUDAGraph``."""
        return getattr(self.run_handle, "graph", self.run_handle)

    def run(self, inputs: list[Input]) -> list[Output]:
        """Replay it, whatever the manager thinks."""
        return self.replay(inputs)

"""The nodes of a tree: what ran in the pool, and what of the path before it that relies on.

Nodes are data. ``capture`` makes them, ``replay`` runs them. Dynamo
calls ``_is_cuda_graph_recorded_tensor`` by that name (``torch._dynamo.variables.optimizer``).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import torch
from torch.utils.weak import TensorWeakRef

from memprof.profiler.model import AllocationProgram

from . import _torch_compat as compat
from .device.cuda import CapturedRun, CudaPool
from .device.protocol import Checkpoint, Input, TensorSpec
from .replay.inputs import CheckInvariantStatus, InputPlan
from .replay.liveness import (
    Liveness,
    OutputRefs,
    PathOutputIndex,
    StorageWeakRefWrapper,
    address_of,
    held,
    path_refs,
)
from .replay.outputs import OutputCache, OutputPlan
from .replay.replay import Replay
from .spec import FunctionSpec


@dataclass(eq=False)
class CUDAWarmupNode:
    """A run in the pool that is not recorded. Only warm-ups follow it, because the addresses of its
    outputs are accidental.

    Attributes:
        number: negative, unlike that of a recording.
        outputs_weakrefs, tensor_weakrefs: the outputs that lie in the pool, and their tensors.
    """

    wrapped_function: FunctionSpec
    number: int
    parent: Node | None
    step: int
    outputs_weakrefs: OutputRefs = field(default_factory=list)
    tensor_weakrefs: list[TensorWeakRef | None] = field(default_factory=list)

    @property
    def path_weakrefs(self) -> list[OutputRefs]:
        """Outputs of all nodes from the root to this one."""
        return [n.outputs_weakrefs for n in path_to(self)]

    def path_live_weakrefs(self) -> Iterator[StorageWeakRefWrapper]:
        """All live outputs of the path."""
        return (r for r in path_refs(self.path_weakrefs) if not r.expired())

    def all_outputs_are_dead(self) -> bool:
        """Whether nobody holds any output of the path."""
        return next(self.path_live_weakrefs(), None) is None

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        """Whether a tensor is an output of the path that is live."""
        address = address_of(t)
        return any(r.address == address for r in self.path_live_weakrefs())


@dataclass(eq=False, kw_only=True)
class CUDAGraphNode:
    """A recording of one function after one path.

    Attributes:
        wrapped_function: what was recorded.
        number: of the recording in its manager, from 0.
        step: number of the step in which it was recorded.
        parent_ref: the recording before it, None for a root.
        outputs_weakrefs: the outputs that lie in the pool. Never replaced, only changed.
        tensor_weakrefs: the tensors that the recording itself returned of these.
        path_weakrefs: outputs of all nodes from the root to this one.
        recorded_liveness_before_graph, recorded_liveness_after_graph: which outputs of the path
            were live when it was recorded, and at its end.
        live_indices_after_graph, live_after: the latter, as indices and as references.
        live_after_slots: the same, each with the cache that it is handed out by, and its
            number there.
        checkpoint: the allocator's books at its end.
        sizes: by address, (bytes asked for, bytes of the block) of its outputs.
        specs: where the storages of copied and managed inputs are, by input.
        program: its allocation program, None if that is not known.
        workspaces: storages of the program that a library keeps until it is told to drop them.
        addresses: of the program's storages.
        children: recordings that follow this one, by function.
        recorded_ns: when it was recorded.
        replays: how often it was replayed.
        marginal_bytes: what the pool took from the device for it.
    """

    wrapped_function: FunctionSpec
    number: int
    step: int
    pool: CudaPool
    parent_ref: weakref.ref[CUDAGraphNode] | None
    input_plan: InputPlan
    output_plan: OutputPlan
    outputs_weakrefs: OutputRefs
    tensor_weakrefs: list[TensorWeakRef | None]
    path_weakrefs: list[OutputRefs]
    recorded_liveness_before_graph: Liveness
    recorded_liveness_after_graph: Liveness
    live_indices_after_graph: list[PathOutputIndex]
    live_after: list[StorageWeakRefWrapper]
    live_after_slots: list[tuple[StorageWeakRefWrapper, OutputCache, int]]
    checkpoint: Checkpoint
    sizes: dict[int, tuple[int, int]]
    specs: dict[int, TensorSpec]
    run_handle: CapturedRun
    replay: Replay
    output_cache: OutputCache
    program: AllocationProgram | None = None
    workspaces: frozenset[int] = frozenset()
    addresses: tuple[int, ...] = ()
    children: dict[FunctionSpec, list[CUDAGraphNode]] = field(default_factory=dict)
    recorded_ns: int = 0
    replays: int = 0
    marginal_bytes: int = 0

    def __post_init__(self) -> None:
        self.fits = self.replay.fits

    @property
    def parent(self) -> CUDAGraphNode | None:
        """The node before it, None for a root."""
        return None if self.parent_ref is None else self.parent_ref()

    def mismatch(self, inputs: list[Input]) -> tuple[CheckInvariantStatus, str]:
        """Why it does not fit, and the details. Not hot."""
        plan, function = self.input_plan, self.wrapped_function
        for status in (
            CheckInvariantStatus.CudagraphManagedIdxMismatch,
            CheckInvariantStatus.StaticInputIdxMismatch,
        ):
            which = plan.relied_on(status)
            if which and not compat.pointers_equal(inputs, plan.pointers, which):
                return status, f"{status.value}.\n{plan.describe_moved(function, inputs, which)}"
        dead_before, copies = self.replay.dead_before, self.replay.copies
        status = CheckInvariantStatus.SUCCESS
        if dead_before and held(dead_before, path_refs(self.path_weakrefs)):
            status = CheckInvariantStatus.ExpectedDeadIndicesBeforeGraphMismatch
        elif copies is not None and not copies.fit(inputs):
            status = CheckInvariantStatus.CopiedInputSizeMismatch
        return status, status.value

    def moved_managed(self, inputs: list[Input]) -> list[int]:
        """Managed inputs that are somewhere else now and could be copied instead: see
        ``moves.copyable``."""
        if self.wrapped_function.mutated_input_idxs:
            return []
        kept = {*self.wrapped_function.static_input_idxs, *self.replay.keep_inputs}
        return self.input_plan.moved(inputs, [i for i in self.input_plan.managed if i not in kept])

    def path_live_weakrefs(self) -> Iterator[StorageWeakRefWrapper]:
        """All live outputs of the path."""
        return (r for r in self.live_after if not r.expired())

    def all_outputs_are_dead(self) -> bool:
        """Whether nobody holds any output of the path."""
        live_after = self.live_after
        return not (
            self.replay.find_live(live_after) and held(live_after, path_refs(self.path_weakrefs))
        )

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        """Whether the memory of a tensor is that of an output of the path, live or not."""
        address = address_of(t)
        return any(r.address == address for r in path_refs(self.path_weakrefs))

    def output_is_aliased(self, index: int) -> None:
        """A descendant returns an alias of this output: no cached tensor for it any more."""
        self.output_plan.cacheable[index] = False
        self.output_cache.clear()

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

    def release(self) -> None:
        """Drop the recording: cached tensors, memory outside the pool, graph, checkpoint."""
        self.output_cache.clear()
        self.output_plan.persistent.clear()
        self.run_handle.release()
        self.replay.release()
        self.checkpoint = None

    def release_graph(self) -> None:
        """Drop what its function holds of the device. What it returned may be held: the rest
        stays until the path ends."""
        self.run_handle.release()
        self.output_cache.let_go_of_fixed()


Node: TypeAlias = "CUDAGraphNode | CUDAWarmupNode"


@overload
def path_to(node: CUDAGraphNode | None) -> list[CUDAGraphNode]: ...
@overload
def path_to(node: Node | None) -> list[Node]: ...
def path_to(node: Any) -> Any:
    """The nodes from the root to this one; none if it is None."""
    nodes = []
    while node is not None:
        nodes.append(node)
        node = node.parent
    nodes.reverse()
    return nodes


def number_of(node: Node | None) -> int | None:
    """The number of a node, for the ledger and for a place; None if there is no node."""
    return None if node is None else node.number


def path_addresses(node: Node | None) -> set[int]:
    """Addresses of all outputs of a path, dead ones included: the memory is the pool's."""
    return set() if node is None else {r.address for r in path_refs(node.path_weakrefs)}


class RecordingTree:
    """The recordings of one manager.

    Attributes:
        roots: those that nothing precedes, by function. Replaced or added to, never emptied one by
            one: another thread may be walking over them.
    """

    def __init__(self) -> None:
        self.roots: dict[FunctionSpec, list[CUDAGraphNode]] = {}

    def after(self, parent: CUDAGraphNode | None) -> dict[FunctionSpec, list[CUDAGraphNode]]:
        """The recordings that follow ``parent``, or the roots if it is None."""
        return self.roots if parent is None else parent.children

    def add(self, node: CUDAGraphNode) -> bool:
        """``node`` was recorded after its parent. Returns whether there were others of its function
        there."""
        siblings = self.after(node.parent).setdefault(node.wrapped_function, [])
        siblings.append(node)
        return len(siblings) > 1

    def remove(self, node: CUDAGraphNode) -> list[CUDAGraphNode]:
        """Take out a recording and what was recorded after it: all of them, none if it was taken
        out before."""
        siblings = self.after(node.parent).get(node.wrapped_function, [])
        if node not in siblings:
            return []
        siblings.remove(node)
        return list(_walk([node]))

    def forget(self, function: FunctionSpec) -> None:
        """``function`` is gone, and so are its recordings: it needs no place among the roots."""
        # A new one: a collector may have come by in the midst of a walk over it.
        self.roots = {f: nodes for f, nodes in self.roots.items() if nodes or f is not function}

    def clear(self) -> None:
        """Forget all recordings, which were released."""
        self.roots.clear()

    def nodes(self) -> Iterator[CUDAGraphNode]:
        """All recordings, parents before children; one that is added meanwhile may be missing.

        The thread that writes a profile comes by here while others record. It takes no lock, which
        would hold it up for as long as a capture lasts and leave it what finalizers put off
        (``capture_lock``): ``list`` copies a dictionary's values or a list in one step of the
        interpreter.
        """
        return _walk([node for nodes in list(self.roots.values()) for node in list(nodes)])


def _walk(nodes: list[CUDAGraphNode]) -> Iterator[CUDAGraphNode]:
    stack = nodes[::-1]
    while stack:
        node = stack.pop()
        yield node
        for children in list(node.children.values()):
            stack.extend(list(children)[::-1])

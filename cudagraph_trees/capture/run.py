"""The two kinds of runs that take memory of the pool: warming up, and recording."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch.utils.weak import TensorWeakRef

from memprof.profiler.doing import name_graphs
from memprof.profiler.model import AllocationProgram

from .. import _torch_compat as compat
from ..device.cuda import CudaPool
from ..device.protocol import AllocatorEvent, Input, Output, TensorSpec
from ..node import CUDAGraphNode, CUDAWarmupNode, Node, path_to
from ..replay.inputs import Copies, InputPlan, reference_persistent, same_addresses
from ..replay.liveness import (
    Liveness,
    OutputRefs,
    StorageWeakRefWrapper,
    address_of,
    died,
    find_live,
    liveness_of,
    path_refs,
    refs_at,
)
from ..replay.outputs import OutputCache, OutputPlan
from ..spec import FunctionSpec
from .pool_check import check_pool
from .program import program_of


@dataclass(slots=True)
class Run:
    """A call that is about to be warmed up or recorded.

    Attributes:
        function, inputs: the call; ``inputs`` are emptied.
        parent, number, step: of the node that it makes.
        pool: where.
        demoted: inputs that a recording copies although a node of the path made them.
        learn_program: a recording learns its allocation program.
        buffers: filled in while it is recorded: where the copies of copied inputs lie.
    """

    function: FunctionSpec
    inputs: list[Input]
    parent: Node | None
    number: int
    step: int
    pool: CudaPool
    demoted: frozenset[int] = frozenset()
    learn_program: bool = False
    buffers: dict[int, TensorSpec] = field(default_factory=dict)


def warm_up_node(run: Run) -> tuple[CUDAWarmupNode, list[Output]]:
    """Warm up: the node, and what the call returns."""
    function, pool, inputs = run.function, run.pool, run.inputs
    node = CUDAWarmupNode(function, run.number, run.parent, run.step)
    in_pool = {r.address for r in node.path_live_weakrefs()}
    # An output that shares the storage of an input from outside is not the pool's.
    outside = [
        StorageWeakRefWrapper(t)
        for t in (*inputs, *function.constants)
        if isinstance(t, torch.Tensor) and address_of(t) not in in_pool
    ]
    outputs = pool.warm_up(function.model, inputs)
    in_extent = pool.extent()
    kept = {r.pointer for r in outside if not r.expired()}
    for o in outputs:
        ours = (
            isinstance(o, torch.Tensor)
            and o.device == pool.device
            and o.untyped_storage()._cdata not in kept
            and in_extent(address_of(o))
        )
        node.outputs_weakrefs.append(StorageWeakRefWrapper(o) if ours else None)  # type: ignore[arg-type]
        node.tensor_weakrefs.append(TensorWeakRef(o) if ours else None)  # type: ignore[arg-type]
    return node, outputs


def capture_node(run: Run) -> tuple[CUDAGraphNode, list[Output]]:
    """Record: the node, and what the call returns.

    Raises:
        UntrackedMemory: the options ask to check, and the pool holds memory unknown to the path.
        Exception: what the function or the device raised. The pool is as ``CudaPool.capture``
            leaves it after a failure.
    """
    function, pool, parent = run.function, run.pool, run.parent
    assert not isinstance(parent, CUDAWarmupNode)
    check = function.options["slow_path_cudagraph_asserts"]
    above = [] if parent is None else parent.path_weakrefs
    plan = InputPlan.of(function, run.inputs, above, run.demoted)
    before = liveness_of(above)
    persistent = reference_persistent(function, plan, run.inputs)
    in_pool = {i: TensorSpec.of(run.inputs[i]) for i in plan.managed}
    observing: Callable[[], AbstractContextManager[list[AllocatorEvent]]] = (
        pool.observing if run.learn_program else lambda: nullcontext([])
    )
    with observing() as events:
        recording = plan.allocate(run.inputs, pool)
    specs = {i: TensorSpec.of(recording[i]) for i in (*plan.copied, *plan.managed)}
    run.buffers.update({i: specs[i] for i in plan.copied})
    buffers: list[Input] = [
        pool.tensor_at(TensorSpec.of(x)) if i in specs else None for i, x in enumerate(recording)
    ]
    if check:
        known = {a for i in plan.copied if (a := address_of(recording[i]))}
        known.update(r.address for r in path_refs(above) if not r.expired())
        check_pool(pool, known, function.options)
    with (
        observing() as captured_events,
        name_graphs(f"{function.label} #{run.number}"),
    ):
        launch, outputs = pool.capture(function.model, recording, kernel_free=function.kernel_free)
    try:
        recording.clear()
        node = _lay_out(run, launch, plan, specs, buffers, before, outputs, persistent)
        if check:
            check_pool(pool, {r.address for r in node.path_live_weakrefs()}, function.options)
        launch()
    except BaseException:
        del launch  # and with it the graph
        raise
    compat.count_copied_inputs(len(plan.copied))
    if run.learn_program:
        _learn_program(node, specs | in_pool, outputs, [*events, *captured_events])
    return node, outputs


def _lay_out(
    run: Run,
    launch: Callable[[], object],
    plan: InputPlan,
    specs: dict[int, TensorSpec],
    buffers: list[Input],
    before: Liveness,
    outputs: list[Output],
    persistent: dict[int, StorageWeakRefWrapper],
) -> CUDAGraphNode:
    """The node of a capture that has just ended, see Note [What is decided when]."""
    function, pool, parent = run.function, run.pool, run.parent
    assert not isinstance(parent, CUDAWarmupNode)
    above = [] if parent is None else parent.path_weakrefs
    dead_before = [] if parent is None else died(parent.recorded_liveness_after_graph, before)
    dead_after = died(before, liveness_of(above))
    output_plan = OutputPlan.of(outputs, above, persistent, pool, function.stack_traces)
    aliased = {a for a in output_plan.alias if isinstance(a, tuple)}
    nodes = path_to(parent)
    for depth, index in aliased:
        nodes[depth].output_is_aliased(index)
    refs: OutputRefs = [
        StorageWeakRefWrapper(o) if isinstance(o, torch.Tensor) and fixed is None else None
        for o, fixed in zip(outputs, output_plan.persistent, strict=True)
    ]
    path = [*above, refs]
    after = liveness_of(path)
    live = [(d, i) for d, alive in enumerate(after) for i, x in enumerate(alive) if x]
    live_after = refs_at(path, live)
    cache = OutputCache(function, run.number, output_plan, refs, path, pool)
    caches = [*(n.output_cache for n in nodes), cache]
    return CUDAGraphNode(
        wrapped_function=function,
        number=run.number,
        step=run.step,
        pool=pool,
        parent_ref=None if parent is None else weakref.ref(parent),
        input_plan=plan,
        output_plan=output_plan,
        outputs_weakrefs=refs,
        tensor_weakrefs=[
            None if r is None else TensorWeakRef(o)  # type: ignore[arg-type]
            for r, o in zip(refs, outputs, strict=True)
        ],
        path_weakrefs=path,
        recorded_liveness_before_graph=before,
        recorded_liveness_after_graph=after,
        live_indices_after_graph=live,
        live_after=live_after,
        live_after_slots=[(r, caches[d], i) for (d, i), r in zip(live, live_after, strict=True)],
        checkpoint=pool.checkpoint(),
        sizes=_sizes(pool, refs),
        specs=specs,
        output_cache=cache,
        same_addresses=same_addresses(plan.pointers, plan.checked) if plan.checked else None,
        find_live=find_live(),
        dead_before=refs_at(above, dead_before),
        dead_after=refs_at(above, dead_after),
        copies=Copies(plan.copied, buffers) if plan.copied else None,
        keep_inputs=[i for i, w in enumerate(plan.live_outputs) if w in aliased],
        launch=launch,
    )


def _sizes(pool: CudaPool, refs: OutputRefs) -> dict[int, tuple[int, int]]:
    """(bytes asked for, bytes of the block) of these outputs, by address."""
    own = {r.address for r in refs if r is not None}
    return {
        block.address: (block.requested, block.nbytes)
        for segment in pool.segments()
        for block in segment.blocks
        if block.live and block.address in own
    }


def _learn_program(
    node: CUDAGraphNode,
    inputs: dict[int, TensorSpec],
    outputs: list[Output],
    events: list[AllocatorEvent],
) -> None:
    found: tuple[AllocationProgram, frozenset[int], tuple[int, ...]]
    try:
        found = program_of(node.wrapped_function, inputs, outputs, events)
    except Exception:
        # The recording is good; only what a profile says of its inside is missing.
        compat.log.warning("no program of %s", node.wrapped_function.label, exc_info=True)
    else:
        node.program, node.workspaces, node.addresses = found

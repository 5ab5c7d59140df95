"""The two kinds of runs that take memory of the pool: warming up, and recording."""

from __future__ import annotations

import torch

from memprof.profiler.support.thread_activity import name_graphs

from ..device.cuda import CudaPool
from ..device.protocol import Input, Output, TensorSpec
from ..replay.inputs import InputPlan, reference_persistent
from ..replay.liveness import StorageWeakRefWrapper, address_of
from ..replay.node import CUDAGraphNode, Node
from ..replay.spec import FunctionSpec
from .pool_check import check_pool


def warm_up_node(
    function: FunctionSpec,
    inputs: list[Input],
    number: int,
    step: int,
    parent: Node | None,
    pool: CudaPool,
) -> tuple[Node, list[Output]]:
    """Warm up: the node, and what the call returns."""
    above = [] if parent is None else parent.path_refs
    in_pool = {r.address for r in above if not r.expired()}
    # An output that shares the storage of an input from outside is not the pool's.
    outside = [
        StorageWeakRefWrapper(t)
        for t in (*inputs, *function.constants)
        if isinstance(t, torch.Tensor) and address_of(t) not in in_pool
    ]
    outputs = pool.warm_up(function.model, inputs)
    in_extent = pool.extent()
    kept = {r.pointer for r in outside if not r.expired()}
    refs = [
        StorageWeakRefWrapper(o)
        if isinstance(o, torch.Tensor)
        and o.device == pool.device
        and o.untyped_storage()._cdata not in kept
        and in_extent(address_of(o))
        else None
        for o in outputs
    ]
    node = Node(function, number, step, parent, refs, outputs)
    node.held_parent = parent
    return node, outputs


def capture_node(
    function: FunctionSpec,
    inputs: list[Input],
    number: int,
    step: int,
    parent: Node | None,
    pool: CudaPool,
    *,
    demoted: frozenset[int],
    copies: dict[int, TensorSpec],
) -> tuple[CUDAGraphNode, list[Output]]:
    """Record: the node, and what the call returns.

    Args:
        function, inputs: the call; ``inputs`` are emptied.
        number, step, parent: of the node.
        pool: where.
        demoted: inputs that are copied although a node of the path made them.
        copies: filled in on the way: where the copies of copied inputs lie.

    Raises:
        UntrackedMemory: the options ask to check, and the pool holds memory unknown to the path.
        Exception: what the function or the device raised. The pool is as ``CudaPool.capture``
            leaves it after a failure.
    """
    assert parent is None or isinstance(parent, CUDAGraphNode)
    check = function.options["slow_path_cudagraph_asserts"]
    above = [] if parent is None else parent.path_refs
    plan = InputPlan(function, inputs, above, demoted)
    live_before = [r for r in above if not r.expired()]
    persistent = reference_persistent(function, plan, inputs)
    recording = plan.allocate(inputs, pool)
    specs = {i: TensorSpec.of(recording[i]) for i in (*plan.copied, *plan.managed)}
    placed = {i: address_of(x) for i, x in enumerate(recording) if isinstance(x, torch.Tensor)}
    copies.update({i: specs[i] for i in plan.copied})
    if check:
        tracked = {a for i in plan.copied if (a := address_of(recording[i]))}
        tracked.update(r.address for r in above if not r.expired())
        check_pool(pool, tracked)
    with name_graphs(f"{function.label} #{number}"):
        launch, outputs = pool.capture(
            function.model,
            recording,
            kernel_free=function.kernel_free,
            annotate=function.annotate,
        )
    try:
        recording.clear()
        node = CUDAGraphNode(
            function,
            number,
            step,
            parent,
            pool,
            launch=launch,
            outputs=outputs,
            plan=plan,
            specs=specs,
            persistent=persistent,
            placed=placed,
            live_before=live_before,
        )
        if check:
            check_pool(pool, {r.address for r in node.path_live_weakrefs()})
        launch()
    except BaseException:
        del launch  # and with it the graph
        raise
    if function.options["force_cudagraph_sync"]:

        def launch_and_wait() -> None:
            launch()
            torch.cuda.synchronize(pool.device)

        node.launch = launch_and_wait
    return node, outputs

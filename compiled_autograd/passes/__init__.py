"""Passes over a captured graph, in the order in which they run.

Each is a function of the graph that changes it in place; none needs values, only the
structure and what the tracer put into ``meta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from .. import _torch_compat, nodes
from ..engine_order import as_the_engine
from ..nodes import VALUE, value_of
from .accumulations import accumulate_grad_asap, hooks_as_eager
from .take_gradients import take_gradients


def run_passes(
    graph: Graph, cuda_graphs: bool, places: Sequence[int] | None
) -> tuple[tuple[int, ...], dict[int, torch.device], int]:
    """Run all passes over a captured graph.

    Args:
        cuda_graphs: the graph shall be capturable as a CUDA graph.
        places: of each call of the engine, its place in the normal engine's order, if known.

    Returns:
        indices of the lifted sizes that the graph still reads; indices of the inputs that it
        expects on a GPU, and which; how many nodes nobody needed.
    """
    if places is not None:
        as_the_engine(graph, places)
    to_cuda = cpu_scalars_to_gpu(graph) if cuda_graphs else {}
    unpack_hooks_late(graph)
    accumulate_grad_asap(graph)
    hooks_as_eager(graph)
    before = len(graph.nodes)
    remove_dead_code(graph)
    removed = before - len(graph.nodes)
    used_sizes = remove_unused_sizes(graph)
    take_gradients(graph)
    return used_sizes, to_cuda, removed


def cpu_scalars_to_gpu(graph: Graph) -> dict[int, torch.device]:
    """Mark the scalars that can be moved as GPU tensors: index of the input -> the GPU.

    Autograd keeps a Python number of the forward (``x / 3``) as a tensor of no dimension on the
    CPU, and a graph with a CPU input cannot be captured as a CUDA graph. Operators take a GPU
    scalar as well. Nothing moves in a graph without GPU inputs, or with inputs on several GPUs, and
    no scalar that code of the user could see (a hook, a custom function, an accumulation).
    """
    items = [n for n in nodes.placeholders(graph)["inputs"].users if nodes.is_getitem(n)]
    values = [(n, value_of(n)) for n in items]
    gpus = {v.device for _, v in values if v is not None and v.device.type == "cuda"}
    if len(gpus) != 1:
        return {}
    (gpu,) = gpus
    moved: dict[int, torch.device] = {}
    for node, value in values:
        if value is None or value.device.type != "cpu" or value.shape != ():
            continue
        if all(_takes_any_device(user) for user in node.users):
            node.meta[VALUE] = replace(value, device=gpu)
            index: Any = node.args[1]
            moved[index] = gpu
    return moved


def _takes_any_device(user: Node) -> bool:
    target: Any = user.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    return _torch_compat.is_builtin_op(target)


def unpack_hooks_late(graph: Graph) -> None:
    """Move each unpack hook to its first user.

    It brings memory to life (it recomputes, decompresses, or copies back from the host), and the
    engine asks for all of a node's saved tensors before the node runs. It is not moved past other
    Python code, which could have changed what it unpacks.
    """
    # Last first, so that several in a row make room for each other and keep their order.
    for node in reversed(list(graph.nodes)):
        if not nodes.is_hook(node, "unpack_hook") or not node.users:
            continue
        first = min(node.users)
        at = node
        while at.next is not first and not nodes.runs_python(at.next):
            at = at.next
        if at is not node:
            at.append(node)


def remove_dead_code(graph: Graph) -> None:
    """Keeps hooks, functions of the user, accumulations and every item of the arguments.

    Items stay although unused: Dynamo refuses aliasing guards between inputs that it finds only
    through the list. Unused sizes go in a pass of their own.
    """
    graph.eliminate_dead_code(
        lambda node: nodes.has_side_effects(node) or nodes.is_item_of_argument(node)
    )


def remove_unused_sizes(graph: Graph) -> tuple[int, ...]:
    """Renumber what is left of ``sizes``; the indices that it had, in the new order.

    Each size costs a tensor a run (``mark_dynamic_size``) and a guard.
    """
    used: list[int] = []
    for item in list(nodes.placeholders(graph)["sizes"].users):
        source, index = item.args
        if item.users:
            item.args = (source, len(used))
            used.append(index)  # type: ignore[arg-type]
        else:
            graph.erase_node(item)
    return tuple(used)

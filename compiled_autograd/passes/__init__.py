"""Passes over a captured graph, in the order in which they run.

Each is a function of the graph that changes it in place; none needs values, only the
structure and what the tracer put into ``meta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph

from .accumulate_grad_asap import accumulate_grad_asap
from .as_the_engine import as_the_engine
from .cpu_scalars_to_gpu import cpu_scalars_to_gpu
from .hooks_as_eager import hooks_as_eager
from .memory_order import memory_order
from .take_gradients import take_gradients
from .tidy import aot_names, remove_dead_code, remove_unused_sizes
from .unpack_hooks_late import unpack_hooks_late


@dataclass(frozen=True, slots=True)
class PassResult:
    """What the runtime has to know of the passes.

    Attributes:
        used_sizes: indices of the lifted sizes that the graph still reads.
        inputs_to_cuda: indices of inputs that the graph expects on a GPU, and which.
        removed: how many nodes nobody needed.
    """

    used_sizes: tuple[int, ...]
    inputs_to_cuda: dict[int, torch.device]
    removed: int


def run_passes(
    graph: Graph, *, cuda_graphs: bool = False, places: Sequence[int] | None = None
) -> PassResult:
    """Run all passes over a captured graph.

    Args:
        cuda_graphs: the graph shall be capturable as a CUDA graph.
        places: of each call of the engine, its place in the normal engine's order, if known.
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
    aot_names(graph)
    take_gradients(graph)
    memory_order(graph)
    return PassResult(used_sizes, to_cuda, removed)

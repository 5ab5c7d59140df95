"""Operations of compiled code, counted where AOTAutograd makes a forward and a backward of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from memprof.what_if._torch_compat import on_partition

UNCACHED = {"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
"""The environment in which every graph is partitioned."""


def count_partitions() -> Counter[str]:
    """Counts, from now on, what AOTAutograd partitions into forward and backward in this process:
    its ``graphs``, their ``flops`` by the formulas of ``torch.utils.flop_counter``, and those
    (``drawn_anew``) whose backward draws random numbers of the forward once more. To be called
    before torch is imported.

    What ``activation_memory_budget`` recomputes stands in the backward a second time, so two runs
    of one script differ by the operations that are recomputed. What comes from AOTAutograd's cache
    is not partitioned: that cache has to be off, as in ``UNCACHED``.
    """
    counts: Counter[str] = Counter()

    def count(halves: Sequence[Any]) -> None:
        counts["graphs"] += 1
        counts["flops"] += sum(_flops(half.graph) for half in halves)
        counts["drawn_anew"] += _draws_anew(*halves)

    on_partition(count)
    return counts


DRAWN_ANEW = (
    "gradients are wrong: a backward draws new random numbers where its forward drew some for "
    "dropout. activation_memory_budget does that (pytorch/pytorch#190758), and "
    "torch.utils.checkpoint does not"
)
"""A note of what ``activation_memory_budget`` below 1 does to dropout in torch 2.11 to 2.15."""


def _draws_anew(*halves: Any) -> bool:
    """Tells whether a forward and its backward draw random numbers of the same node of the joint
    graph, whose name it keeps in both."""
    from memprof.compile_backend.stages.provenance.aot_nodes import draws_random_numbers

    forward, backward = (
        {n.name for n in half.graph.nodes if draws_random_numbers(n)} for half in halves
    )
    return not forward.isdisjoint(backward)


def _flops(graph: Any) -> int:
    from torch.fx.node import map_arg
    from torch.utils.flop_counter import flop_registry

    total = 0
    for node in graph.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if node.op != "call_function" or formula is None:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        total += int(formula(*args, **kwargs, out_val=node.meta.get("val")))
    return total

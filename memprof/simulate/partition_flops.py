"""Floating-point operations of what AOTAutograd partitions into forward and backward.

What ``activation_memory_budget`` recomputes stands in the backward a second time, so two runs of
one script differ by the operations that are recomputed. Formulas are those of
``torch.utils.flop_counter``: matrix products, convolutions and attention; what has none there,
such as elementwise operators, counts nothing. A graph that is partitioned again (another size)
counts again, and one that comes from AOTAutograd's cache is not partitioned: that cache has to be
off.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memprof.simulated_cuda.after_import import after_import

UNCACHED = {"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
"""The environment in which every graph is partitioned."""


class PartitionFlops:
    """Counts floating-point operations and partitions in this process from its installation on."""

    def __init__(self) -> None:
        self.total = 0
        self.graphs = 0

    def install(self) -> None:
        """Count what is partitioned from now on; before torch is imported."""
        after_import("torch._functorch.partitioners", self._wrap)

    def _wrap(self, partitioners: ModuleType) -> None:
        partition = partitioners.min_cut_rematerialization_partition

        def counted(*args: Any, **kwargs: Any) -> Any:
            halves = partition(*args, **kwargs)
            self.graphs += 1
            self.total += sum(_flops(half.graph) for half in halves)
            return halves

        partitioners.min_cut_rematerialization_partition = counted  # type: ignore[attr-defined]


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

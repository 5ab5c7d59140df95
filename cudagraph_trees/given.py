"""What a graph was given of which the trees run parts.

Note [Graphs in parts]
~~~~~~~~~~~~~~~~~~~~~~
Inductor cuts a graph that cannot be captured whole: the trees run its partitions, and generated
code runs what is between them. So the call that begins a step is one of a partition, and what the
graph was given and something else of it reads, a later partition or the code in between, is not
among its inputs. It may lie in an output of the step that ends all the same (``g(a, f(x))``), and
nobody could replace it: generated code has it in a variable of its own.

So whoever calls such a graph says before what it was given, and what lies in a live output stays
the tensor that it is: it moves out of the pool, see Note [The end of a step]. It is referred to
weakly, so that it can die as soon as the graph has read it. Graphs that are one partition and
nothing else need none of that, which is most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from .container import family
from .device.protocol import Input
from .manager import CUDAGraphTreeManager
from .replay.liveness import path_refs


def tell_what_is_given(call: Callable[[list[Input]], Any]) -> Callable[[list[Input]], Any]:
    """The callable of a graph in parts, which tells the managers what each call was given."""

    def telling(inputs: list[Input]) -> Any:
        before = []
        for container in family().containers.values():
            manager = container.tree_manager
            if manager is not None:
                before.append((manager, manager.given))
                manager.given = _in_outputs(manager, inputs)
        try:
            return call(inputs)
        finally:
            for manager, given in before:
                manager.given = given

    return telling


def _in_outputs(manager: CUDAGraphTreeManager, inputs: Sequence[Input]) -> list[TensorWeakRef]:
    """Inputs that lie in live outputs of the last step, if another one may begin."""
    node = manager.path.node
    if node is None or not manager.path.step_may_begin():
        return []
    live = {r.pointer for r in path_refs(node.path_weakrefs) if not r.expired()}
    if not live:
        return []
    return [
        TensorWeakRef(x)
        for x in inputs
        if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata in live
    ]

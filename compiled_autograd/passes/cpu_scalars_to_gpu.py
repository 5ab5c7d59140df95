"""Move scalars that autograd saved on the CPU to the GPU.

Autograd keeps a Python number of the forward (``x / 3``) as a tensor of no dimension on the
CPU. Lifted, it is a CPU input of a graph that otherwise lives on the GPU, and such a graph
cannot be captured as a CUDA graph. Operators take a GPU scalar as well.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from .. import _torch_compat
from ..node_meta import ValueInfo, set_value, value_of
from ..nodes import is_getitem, placeholders


def cpu_scalars_to_gpu(graph: Graph) -> dict[int, torch.device]:
    """Mark the scalars that can be moved as GPU tensors: index of the input -> the GPU.

    Nothing moves in a graph without GPU inputs, or with inputs on several GPUs, and no scalar
    that code of the user could see (a hook, a custom function, an accumulation).
    """
    items = [n for n in placeholders(graph)["inputs"].users if is_getitem(n)]
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
            set_value(node, ValueInfo(value.nbytes, gpu, (), value.dtype, exact=value.exact))
            index = node.args[1]
            assert isinstance(index, int)
            moved[index] = gpu
    return moved


def _takes_any_device(user: Node) -> bool:
    target: Any = user.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in ("aten", "prims")
    return _torch_compat.is_builtin_op(target)

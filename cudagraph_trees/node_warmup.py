"""One warm-up run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import TensorWeakRef

from .inputs import address_of
from .liveness import OutputRefs
from .storage_ref import StorageWeakRefWrapper

if TYPE_CHECKING:
    from .device.protocol import Input, Output, Pool
    from .function import Function, GraphID
    from .node_recorded import CUDAGraphNode


class CUDAWarmupNode:
    """A run in the pool that is not recorded.

    It follows recordings or warm-ups; only warm-ups follow it, because the addresses of
    its outputs are accidental.

    Attributes:
        wrapped_function: what ran.
        id: negative.
        parent: the node before it.
        outputs_weakrefs: the outputs that lie in the pool.
        tensor_weakrefs: their tensors.
        step: number of the step in which it ran.
    """

    __slots__ = (
        "__weakref__",
        "id",
        "outputs_weakrefs",
        "parent",
        "step",
        "tensor_weakrefs",
        "wrapped_function",
    )

    def __init__(
        self,
        function: Function,
        id: GraphID,
        parent: CUDAGraphNode | CUDAWarmupNode | None,
        step: int,
    ) -> None:
        self.wrapped_function = function
        self.id = id
        self.parent = parent
        self.step = step
        self.outputs_weakrefs: OutputRefs = []
        self.tensor_weakrefs: list[TensorWeakRef | None] = []

    def run(self, inputs: list[Input], pool: Pool) -> list[Output]:
        """Run it. ``inputs`` is emptied.

        Raises:
            Exception: what the function raised.
        """
        in_pool = {r.address for r in self.path_live_weakrefs()}
        # An output that shares the storage of an input from outside is not the pool's.
        outside = [
            StorageWeakRefWrapper(t)
            for t in (*inputs, *self.wrapped_function.constants)
            if isinstance(t, torch.Tensor) and address_of(t) not in in_pool
        ]
        out = pool.warm_up(self.wrapped_function, inputs)
        in_extent = pool.extent()
        kept = {r.pointer for r in outside if not r.expired()}
        for o in out:
            ours = (
                isinstance(o, torch.Tensor)
                and o.device == pool.device
                and o.untyped_storage()._cdata not in kept
                and in_extent(address_of(o))
            )
            self.outputs_weakrefs.append(StorageWeakRefWrapper(o) if ours else None)  # type: ignore[arg-type]
            self.tensor_weakrefs.append(TensorWeakRef(o) if ours else None)  # type: ignore[arg-type]
        return out

    @property
    def path_weakrefs(self) -> list[OutputRefs]:
        """Outputs of all nodes from the root to this one."""
        return [n.outputs_weakrefs for n in self._path_from_root]

    @property
    def _path_from_root(self) -> Iterator[CUDAGraphNode | CUDAWarmupNode]:
        nodes: list[CUDAGraphNode | CUDAWarmupNode] = []
        node: CUDAGraphNode | CUDAWarmupNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return reversed(nodes)

    def path_live_weakrefs(self) -> Iterator[StorageWeakRefWrapper]:
        """All live outputs of the path."""
        for refs in self.path_weakrefs:
            for r in refs:
                if r is not None and not r.expired():
                    yield r

    def all_outputs_are_dead(self) -> bool:
        """Whether nobody holds any output of the path."""
        return next(self.path_live_weakrefs(), None) is None

    def _is_cuda_graph_recorded_tensor(self, t: torch.Tensor) -> bool:
        address = address_of(t)
        return any(r.address == address for r in self.path_live_weakrefs())

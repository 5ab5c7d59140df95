"""What torch's manager and nodes call the things that ours keep in another form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .path_state import ExecutionState

if TYPE_CHECKING:
    from .device.protocol import CapturedRun, Input, Model, Output, Pool
    from .function import Function, FunctionID
    from .generations import Generations
    from .hand_out import HandOut
    from .inputs import InputPlan
    from .liveness import OutputRefs
    from .node_recorded import CUDAGraphNode
    from .node_replay import Replay
    from .node_warmup import CUDAWarmupNode
    from .outputs import OutputAliasInfo, OutputPlan


class NodeNames:
    """Mixed into ``CUDAGraphNode``."""

    wrapped_function: Function
    input_plan: InputPlan
    output_plan: OutputPlan
    outputs_weakrefs: OutputRefs
    hand_out: HandOut
    replay: Replay
    run_handle: CapturedRun

    @property
    def output_storage_alias(self) -> list[OutputAliasInfo | None]:
        return self.output_plan.alias

    @property
    def unaliased_in_all_paths(self) -> list[bool]:
        return self.output_plan.cacheable

    @property
    def static_output_tensors(self) -> list[torch.Tensor | None]:
        return self.output_plan.persistent

    @property
    def cached_tensor_outputs(self) -> list[torch.Tensor | None]:
        slots = self.hand_out.slots
        return [
            t if r is not None and r.cache is not None else None  # type: ignore[misc]
            for t, r in zip(slots, self.outputs_weakrefs, strict=False)
        ]

    @property
    def static_input_data_ptrs(self) -> list[int | None]:
        return self.input_plan.pointers

    @property
    def cudagraph_managed_idxs(self) -> list[int]:
        return self.input_plan.managed

    @property
    def static_input_idxs(self) -> list[int]:
        return sorted({*self.wrapped_function.static_input_idxs, *self.input_plan.managed})

    @property
    def non_static_input_idx(self) -> list[int]:
        return self.input_plan.copied

    @property
    def graph(self) -> object:
        """The device's recording; on CUDA a ``torch.cuda.CUDAGraph``."""
        return getattr(self.run_handle, "graph", self.run_handle)

    def run(self, inputs: list[Input]) -> list[Output]:
        """Replay it, whatever the manager thinks."""
        return self.replay.run(inputs)


class ManagerNames:
    """Mixed into ``CUDAGraphTreeManager``."""

    pool: Pool
    roots: dict[FunctionID, list[CUDAGraphNode]]
    _generations: Generations
    _node: CUDAGraphNode | CUDAWarmupNode | None
    _state: ExecutionState
    wrap: Callable[..., Callable[[list[Input]], list[Output]]]

    def add_function(
        self, model: Model, inputs: list[Input], *args: Any, **options: Any
    ) -> tuple[Callable[[list[Input]], list[Output]], list[Output]]:
        """Wrap a function and call it for the first time."""
        wrapped = self.wrap(model, inputs, *args, **options)
        return wrapped, wrapped(inputs)

    @property
    def in_recording(self) -> bool:
        return self._state is ExecutionState.RECORDING

    @property
    def in_warmup(self) -> bool:
        return self._state is ExecutionState.WARMUP

    @property
    def running_forwards_with_pending_backwards(self) -> bool:
        """See ``generations``."""
        return self._generations.pending_backward

    @property
    def current_gen(self) -> int:
        return self._generations.last

    @property
    def cuda_graphs_thread_pool(self) -> Any:
        """The pool's handle."""
        return self.pool.handle

    def get_roots(self) -> Iterator[CUDAGraphNode]:
        """All roots."""
        for nodes in self.roots.values():
            yield from nodes

    def live_cudagraph_pool_storages_in_curr_execution(self) -> list[int]:
        """Pointers to the live storages of the current path."""
        if self._node is None:
            return []
        return [r.pointer for r in self._node.path_live_weakrefs()]

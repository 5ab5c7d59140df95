"""What torch's ``CUDAGraphNode`` calls the things that ours keeps in another form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .device.protocol import CapturedRun, Input, Output
    from .function import Function
    from .hand_out import HandOut
    from .inputs import InputPlan
    from .liveness import OutputRefs
    from .node_replay import Replay
    from .outputs import OutputAliasInfo, OutputPlan


class TorchNames:
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

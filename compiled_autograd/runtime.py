"""What C++ calls for each backward that has a captured graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from . import _torch_compat
from .capture_lock import THREAD, end_turn
from .errors import StaleCaptureError
from .final_callbacks import final_callbacks
from .nan_check import NanCheck
from .switch import OFF, SWITCH

if TYPE_CHECKING:
    from .events import Capture, CaptureLog

_MAX_CARRIERS = 4096


@dataclass(eq=False, repr=False)
class RuntimeWrapper:
    """Runs the compiled function with compiled autograd itself switched off.

    Off, because a hook or a re-entrant checkpoint may call ``backward()`` inside: those
    inner backwards run in the normal engine.

    Args:
        capture: the graph.
        log: whose listeners want to know of runs.
        context: what Dynamo names compilations inside after.
        used_sizes: indices of the sizes that the graph reads; the others were dropped.
        to_cuda: indices of CPU scalars that the graph expects on a GPU, and which.
        nan_check: of anomaly mode.
        shapes: of the inputs, if the graph holds for those only.
    """

    capture: Capture
    log: CaptureLog
    context: Any
    _: KW_ONLY
    used_sizes: tuple[int, ...]
    to_cuda: Mapping[int, torch.device]
    nan_check: NanCheck | None
    shapes: Sequence[tuple[int, ...]] | None
    _carriers: dict[tuple[int, int], Any] = field(default_factory=dict, init=False)

    @_torch_compat.unseen_by_dynamo
    def __call__(
        self,
        compiled_fn: Callable[..., Any],
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: list[Any],
        hooks: Any,
        packed_data: Any,
    ) -> Any:
        """Gradients asked for with ``grad()``; empty for ``backward()``."""
        THREAD.ran = True
        if self.log.listeners:
            self.log.ran(self.capture)
        if self.shapes is not None:
            self._check_shapes(inputs)
        parameters = self.nan_check.before(inputs) if self.nan_check is not None else []
        for i, gpu in self.to_cuda.items():
            inputs[i] = inputs[i].pin_memory().to(gpu, non_blocking=True)
        lifted = [self._size(i, sizes[i]) for i in self.used_sizes]
        state = _torch_compat.state
        claim = SWITCH.open(OFF, runs=True)
        try:
            state.in_compiled_autograd_region = True
            end_turn()
            with final_callbacks(), _torch_compat.compile_context(self.context):
                outputs = _torch_compat.seen_by_dynamo(compiled_fn)(
                    inputs, lifted, scalars, hooks, packed_data
                )
                if self.nan_check is not None:
                    self.nan_check.after(parameters, outputs)
            return outputs
        finally:
            state.in_compiled_autograd_region = False
            SWITCH.close(claim)

    def _size(self, index: int, value: int) -> Any:
        """The tensor that carries a size; making one costs microseconds, and there are many.

        One for each place: Dynamo would guard on two places sharing one.
        """
        if (carrier := self._carriers.get((index, value))) is None:
            if len(self._carriers) >= _MAX_CARRIERS:
                self._carriers.clear()
            carrier = self._carriers[index, value] = _torch_compat.mark_dynamic_size(value)
        return carrier

    def _check_shapes(self, inputs: Sequence[torch.Tensor]) -> None:
        assert self.shapes is not None
        for i, (tensor, shape) in enumerate(zip(inputs, self.shapes, strict=True)):
            if tuple(tensor.shape) != shape:
                raise StaleCaptureError(
                    f"captured graph {self.capture.id} holds for input {i} of shape {shape}, and "
                    f"got {tuple(tensor.shape)}: a C++ node ran operators at capture, so the "
                    f"graph is not for other sizes. Call memprof.compiled_autograd.reset() when "
                    f"sizes change, or disable() for this backward"
                )

"""``cross_entropy`` in parts: of what lies between logits and loss, one part is there at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_CHUNKS = 8


def chunked_cross_entropy(
    whole: Callable[..., Any], said: Callable[[int], None]
) -> Callable[..., Any]:
    """``torch.nn.functional.cross_entropy``, in eight chunks of rows, each checkpointed.

    Args:
        whole: torch's own, which also gets what is no mean over rows of logits.
        said: is told of how many rows, where chunks were made.
    """

    def cross_entropy(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        from torch.utils.checkpoint import checkpoint

        other = size_average is not None or reduce is not None or weight is not None
        rows = input.shape[0] if input.dim() == 2 and target.dim() == 1 else 0
        if other or reduction != "mean" or rows < 2 * _CHUNKS:
            return whole(
                *(input, target, weight, size_average, ignore_index, reduce),
                reduction=reduction,
                label_smoothing=label_smoothing,
            )

        def part(logits: Any, labels: Any) -> Any:
            return whole(
                *(logits, labels),
                ignore_index=ignore_index,
                reduction="sum",
                label_smoothing=label_smoothing,
            )

        said(rows)
        chunks = zip(input.chunk(_CHUNKS), target.chunk(_CHUNKS), strict=True)
        total = sum(checkpoint(part, a, b, use_reentrant=False) for a, b in chunks)
        return total / (target != ignore_index).sum()

    return cross_entropy

"""Backwards whose first runs fail."""

from __future__ import annotations

import pytest
import torch

from ..support import graphed, same, step

pytestmark = pytest.mark.simgpu


@pytest.mark.parametrize("failing", [1, 2], ids=["warm-up", "recording"])
def test_what_was_saved_elsewhere_dies_in_the_backward_that_fails(failing: int) -> None:
    runs = []

    def backward(saved: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        runs.append(1)
        out = saved.mul_(g) + 0  # a buffer that nobody needs any more is written to
        del saved, g
        if len(runs) == failing:
            raise torch.OutOfMemoryError("once")
        return [out]

    like = torch.ones(8, device="cuda")
    # GIVEN a backward, to which all that was saved for it is static
    f = graphed(backward, [like, like], static=(0,), is_backward=True)
    for i in range(4):
        # WHEN that does not lie where a graph put it: it was offloaded, say
        saved = [torch.full((8,), float(i), device="cuda"), torch.full((8,), 2.0, device="cuda")]
        with step():
            (g,) = f(saved)
        same(g, torch.full((8,), 2.0 * i))

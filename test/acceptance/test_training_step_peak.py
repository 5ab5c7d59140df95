"""The timeline of a whole training step against the allocator: what is carried from forward to
backward to optimizer, not only what each call does by itself."""

from __future__ import annotations

import pytest
import torch
from framing import findings
from torch import nn

import memprof
from acceptance.allocator_truth import allocator_peak
from memprof.profiler.live.timeline import Timeline

pytestmark = pytest.mark.zero_kernels

# Scalars of eager code (the gradient of the loss, its scale) are not the timeline's to see.
EAGER_SCALARS = 64


class Broken(nn.Module):
    """Two graphs a call: memory is handed on between them, and both save some."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 512)
        self.norm = nn.LayerNorm(512)
        self.last = nn.Linear(512, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.norm(self.first(x)))
        torch._dynamo.graph_break()
        return self.last(h).square().mean()


@pytest.mark.parametrize("forwards_at_once", [1, 2])
def test_peak_of_a_step_is_the_allocators(forwards_at_once: int) -> None:
    # GIVEN a training step of compiled forwards, backwards and optimizer
    torch.manual_seed(0)
    model = Broken()
    compiled = torch.compile(model, backend="memprof")
    optimizer = torch.optim.Adam(model.parameters())
    update = torch.compile(optimizer.step, backend="memprof")
    batches = [torch.randn(256, 64) for _ in range(forwards_at_once)]

    def step() -> None:
        # All forwards wait before the first backward runs; gradients are added up in `.grad`.
        for loss in [compiled(x) for x in batches]:
            loss.backward()
        update()
        optimizer.zero_grad()

    with memprof.profile() as session:
        for _ in range(3):
            step()
        before = len(session.profile().calls)
        # WHEN one step is watched by the allocator
        peak, end = allocator_peak(step)
    assert end == 0

    # THEN the timeline has the same peak, above what lived before the step
    profile = session.profile()
    assert findings(profile) == []
    timeline = Timeline(profile)
    assert timeline.unobserved() == []
    over_time = timeline.bytes_over_time()
    # The batches live all along; the timeline knows them while a call or a saved value has them,
    # which at the peak is all of them.
    given = sum(x.nbytes for x in batches)
    ours = max(over_time["peak"][before:]) - over_time["between"][before - 1] - given
    slack = EAGER_SCALARS + peak // 100
    # Of several backwards, the one that was observed need not be the one whose gradient became
    # `.grad`; then the sum in `.grad` is eager memory, which the timeline does not see.
    unseen = sum(p.nbytes for p in model.parameters()) if forwards_at_once > 1 else 0
    assert peak - slack - unseen <= ours <= peak + slack
    # The loop is steady: every step has the same bytes.
    calls = len(timeline) - before
    assert list(over_time["peak"][before:]) == list(over_time["peak"][before - calls : before])

"""``memprof diff`` of a residual network before and after checkpointing, against the allocator:
it names the modules that changed, and by how much to within 1 %."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memprof
from acceptance.allocator_truth import allocator_peak
from memprof.profiler.model import Profile
from memprof.profiler.views.compare.diff import compare

pytestmark = pytest.mark.zero_kernels

WIDTH, LENGTH, BATCH, BLOCKS = 64, 64, 8, 2


class Block(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.norm(x))
        return x + (checkpoint(self.mlp, x, use_reentrant=False) if self.again else self.mlp(x))

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    """Only the blocks with these numbers are checkpointed."""

    def __init__(self, again: set[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(i in again) for i in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def measure(again: set[int]) -> tuple[Profile, int, int]:
    """Profile, the allocator's peak of a step above its start, what is live after the forward."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model(again)
    compiled = torch.compile(model, backend="memprof")
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def step() -> None:
        compiled(x).backward()
        model.zero_grad(set_to_none=True)

    kept: list[torch.Tensor] = []
    with memprof.profile() as session:
        for _ in range(3):
            step()
        peak, end = allocator_peak(step)
        assert end == 0
    _, saved = allocator_peak(lambda: kept.append(compiled(x)))
    return session.profile(), peak, saved


def test_diff_names_the_modules_that_were_checkpointed() -> None:
    # GIVEN a model, and the same with the last of its blocks' MLPs checkpointed
    before, peak_before, saved_before = measure(set())
    after, peak_after, saved_after = measure({1})
    found = {q.name: q for q in compare(before, after).quantities}

    # THEN what it says of the peak and of the saved activations is what the allocator says
    measured = peak_after - peak_before
    assert measured < 0
    print(f"peak: measured {measured:,}, memprof diff {found['peak'].change:,}")
    assert abs(found["peak"].change - measured) <= abs(measured) // 100
    measured_saved = saved_after - saved_before
    print(f"saved: measured {measured_saved:,}, memprof diff {found['saved'].change:,}")
    assert abs(found["saved"].change - measured_saved) <= abs(measured_saved) // 100

    # AND what saved less is the MLP of this block, and the bytes are its own
    saved = {c.key: c.change for c in found["saved"].views["module"]}
    blocks = {key.split(".")[1] for key, change in saved.items() if change < 0}
    assert blocks == {"1"}
    # at least one of the value before the gelu and the one after it
    gelu = BATCH * LENGTH * 4 * WIDTH * 4
    fewer = sum(change for change in saved.values() if change < 0)
    assert fewer <= -gelu
    top = found["saved"].views["node"][0]
    assert "gelu" in top.key
    assert sum(c.change for c in found["saved"].views["module"]) == found["saved"].change
    assert sum(c.change for c in found["peak"].views["module"]) == found["peak"].change

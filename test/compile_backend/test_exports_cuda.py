"""memory_viz of a run with CUDA graphs: what torch's own snapshot cannot show, where it has it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.views.export import devices_of, export_profile

pytestmark = pytest.mark.simgpu


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def test_replays_are_at_the_addresses_of_torchs_pool(tmp_path: Path) -> None:
    # GIVEN eight steps of training, of which the last five replay
    model = Net().cuda()
    compiled = torch.compile(model, backend="memprof")
    x = torch.ones(8, 64, device="cuda")
    with memprof.profile() as session:
        for _ in range(8):
            model.zero_grad()
            compiled(x).sum().backward()
    profile = session.profile()
    modes = call_modes(profile)
    assert modes.count(CallMode.REPLAY) == 10
    assert modes.count(CallMode.RECORD) == 2
    torchs = {
        (s["address"], s["total_size"])
        for s in torch.cuda.memory._snapshot()["segments"]
        if s["segment_pool_id"] != (0, 0)
    }
    # WHEN they are exported
    export_profile(profile, "memory-viz", tmp_path / "p.pickle", devices_of(profile))
    taken = pickle.loads((tmp_path / "p.pickle").read_bytes())
    # THEN the pool's segments are torch's
    pool = {
        (s["address"], s["total_size"]) for s in taken["segments"] if s["segment_pool_id"] == (0, 1)
    }
    assert pool
    assert pool <= torchs
    # AND every allocation of a recorded or replayed call is in them, inside of graphs included
    in_pool = [
        e
        for e in taken["device_traces"][0]
        if e["action"] == "alloc" and any(a <= e["addr"] < a + n for a, n in pool)
    ]
    timeline = Timeline(profile, "cuda:0")
    inside = sum(
        after is not None
        for k, mode in enumerate(modes)
        if mode in (CallMode.RECORD, CallMode.REPLAY)
        for _, after in timeline.changes(k)
    )
    assert len(in_pool) == inside
    # AND what is live adds up
    live = sum(s["requested_size"] for s in taken["segments"])
    assert live == timeline.bytes_over_time().between[-1]

"""Whoever reads a pool has the lock that its contract asks for."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees.device import capture_lock
from memprof.cudagraph_trees.explain.attribution import explain_pool

from .support import graphed, manager

pytestmark = pytest.mark.simgpu


def test_the_lock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x + 1], [x])
    f([x])
    held: list[bool] = []
    live_blocks = manager().pool.live_blocks
    monkeypatch.setattr(
        manager().pool,
        "live_blocks",
        lambda: held.append(capture_lock.capture_depth() > 0) or live_blocks(),
    )
    # WHEN the pool is read by somebody who is in no call
    assert not capture_lock.capture_depth()
    explain_pool(manager(), lambda node, output: str(output))
    # THEN with the lock
    assert held
    assert all(held)

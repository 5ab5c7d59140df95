"""Whoever reads a pool has the lock that its contract asks for. No device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees import capture_lock
from memprof.cudagraph_trees.account.attribution import explain_pool
from memprof.cudagraph_trees.account.history import replay_memory
from memprof.cudagraph_trees.container import get_manager, reset_cudagraph_trees

from .support import graphed

CPU = torch.device("cpu")


@pytest.mark.parametrize("read", [lambda m: replay_memory(), explain_pool])
def test_the_lock_is_held(read: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch) -> None:
    f = graphed(lambda x: [x + 1], [torch.ones(4)], device=CPU)  # type: ignore[arg-type]
    f([torch.ones(4)])
    manager = get_manager(CPU)
    assert manager is not None
    held: list[bool] = []
    segments = manager.pool.segments
    monkeypatch.setattr(
        manager.pool, "segments", lambda: held.append(capture_lock._inside.depth > 0) or segments()
    )
    # WHEN the pool is read by somebody who is in no call
    assert not capture_lock._inside.depth
    read(manager)
    # THEN with the lock
    assert held
    assert all(held)
    del f
    reset_cudagraph_trees()

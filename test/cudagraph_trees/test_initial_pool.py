"""The pool's initial size."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees.torch_options import TreeOptions

from .support import graphed, in_steps, pool_segments

pytestmark = pytest.mark.simgpu

MIB = 1 << 20


def test_a_pool_starts_with_one_segment() -> None:
    options = TreeOptions({"cudagraph_initial_mempool_allocation_gb": 32 / 1024})
    f = graphed(lambda x: [x * 2 + 1], [torch.ones(4, device="cuda")], torch_options=options)
    for _ in in_steps(range(3)):
        f([torch.ones(2 * MIB, device="cuda")])
    (segment,) = pool_segments()
    assert segment["total_size"] == 32 * MIB

"""Every byte of the pool is explained."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees.explain.attribution import explain_pool
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.cudagraph_trees.torch_options import TreeOptions

from .support import graphed, in_steps, manager, pool_segments

pytestmark = pytest.mark.simgpu


def reserved() -> int:
    return sum(s["total_size"] for s in pool_segments())


def test_between_calls() -> None:
    # GIVEN two functions whose sizes are not multiples of 512 bytes
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(1001, device="cuda")])
    g = graphed(lambda x: [x * 2], [torch.ones(1001, device="cuda")])
    states = set()
    for _ in in_steps(range(4)):
        a, b = f([torch.ones(1001, device="cuda")])
        (c,) = g([a])
        parts = explain_pool(manager(), lambda node, _: str(node.number))
        states.add(manager().path.state)
        # THEN three outputs are live, two of the first node and one of the second
        assert sorted(parts.nodes.values()) == [4004, 8008]
        assert parts.rounding == 3 * (4096 - 4004)
        assert parts.unattributed == 0
        assert parts.reserved == reserved()
        del a, b, c
        parts = explain_pool(manager(), lambda node, _: str(node.number))
        assert parts.free == parts.reserved == reserved()
    assert states == {ExecutionState.WARMUP, ExecutionState.RECORDING, ExecutionState.EXECUTION}


@pytest.mark.parametrize("junk", [0, 200], ids=["", "full"])
def test_the_users_memory_history_stays_as_it_is(junk: int) -> None:
    options = TreeOptions({"cudagraph_trees_history_recording": True})
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=200)
    try:
        for i in range(junk):
            torch.empty(i, device="cuda")
        mark = torch.empty(12345, dtype=torch.uint8, device="cuda")
        f = graphed(lambda x: [x * 2 + 1], [torch.ones(64, device="cuda")], torch_options=options)
        for _ in in_steps(range(3)):
            f([torch.ones(64, device="cuda")])
        assert torch._C._cuda_isHistoryEnabled()
        sizes = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
        assert 12345 in sizes
        del mark
    finally:
        torch.cuda.memory._record_memory_history(None)

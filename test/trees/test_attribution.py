"""Every byte of the pool is explained, at every instant."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees._torch_compat import torch_version
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.explain.attribution import explain_pool, explain_replay
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.cudagraph_trees.settings import configure
from memprof.profiler.model import Category, EventKind, Origin

from .support import graphed, manager, next_step, pool_segments, roots

pytestmark = pytest.mark.simgpu


def reserved() -> int:
    return sum(s["total_size"] for s in pool_segments())


def test_between_calls() -> None:
    # GIVEN two functions whose sizes are not multiples of 512 bytes
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(1001, device="cuda")])
    g = graphed(lambda x: [x * 2], [torch.ones(1001, device="cuda")])
    states = set()
    for _ in range(4):
        next_step()
        a, b = f([torch.ones(1001, device="cuda")])
        (c,) = g([a])
        parts = explain_pool(manager())
        states.add(manager().path.state)
        # THEN three outputs are live, two of the first node and one of the second
        assert sorted(parts.nodes.values()) == [4004, 8008]
        assert parts.rounding == 3 * (4096 - 4004)
        assert parts.workspace == parts.unattributed == 0
        assert parts.reserved == reserved()
        del a, b, c
        assert explain_pool(manager()).live == 0
    assert states == {ExecutionState.WARMUP, ExecutionState.RECORDING, ExecutionState.EXECUTION}


def test_inside_a_replay() -> None:
    configure(programs=True)
    n = 1 << 18

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        z = y + 1
        del y
        return [z * z]

    f = graphed(work, [torch.ones(n, device="cuda")])
    for _ in range(3):
        next_step()
        f([torch.ones(n, device="cuda")])
    assert not torch._C._cuda_isHistoryEnabled()
    (root,) = roots()
    program = root.program
    assert program is not None
    assert [s.origin for s in program.storages].count(Origin.INPUT) == 1
    assert [e.kind for e in program.events].count(EventKind.ALLOC) == 3
    assert program.storages[-1].category is Category.OUTPUT
    assert program.peak()[1] == 3 * 4 * n
    for instant in range(len(program.events) + 1):
        parts = explain_replay(root, instant)
        assert parts.reserved == reserved()
        assert parts.free >= 0
    assert explain_replay(root).attributed == 3 * 4 * n


def test_workspaces_that_a_library_keeps_are_a_part_of_their_own() -> None:
    configure(programs=True)
    weight = torch.ones(64, 256, device="cuda")
    f = graphed(lambda w, x: [torch.mm(x, w) + 1], [weight, weight], static=(0,))
    for _ in range(3):
        next_step()
        f([weight, torch.ones(32, 64, device="cuda")])
    (root,) = roots()
    program = root.program
    assert program is not None
    parts = [explain_replay(root, i) for i in range(len(program.events) + 1)]
    assert all(p.reserved == reserved() and p.unattributed == 0 for p in parts)
    inputs, product, result = 4 * 32 * 64, 4 * 32 * 256, 4 * 32 * 256
    if torch_version() < (2, 15):
        # cuBLAS gets a workspace when it is first used in the recording; it stays until the end.
        kept = [program.storages[i] for i in root.workspaces]
        assert [s.origin for s in kept] == [Origin.INTERNAL]
        assert kept[0].nbytes >= 1 << 20
        assert [p.workspace for p in parts[1:-1]].count(kept[0].nbytes) >= 2
        assert {p.workspace for p in parts} == {0, kept[0].nbytes}
        assert max(p.attributed for p in parts) == inputs + product + result
    else:
        # It comes and goes with the multiplication, and is its scratch memory.
        assert not root.workspaces
        assert max(p.attributed for p in parts) > inputs + product + (1 << 20)


@pytest.mark.parametrize("junk", [0, 200], ids=["", "full"])
def test_the_users_memory_history_stays_as_it_is(junk: int) -> None:
    configure(programs=True)
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python", max_entries=200)
    try:
        for i in range(junk):
            torch.empty(i, device="cuda")
        mark = torch.empty(12345, dtype=torch.uint8, device="cuda")
        f = graphed(lambda x: [x * 2 + 1], [torch.ones(64, device="cuda")])
        for _ in range(3):
            next_step()
            f([torch.ones(64, device="cuda")])
        assert torch._C._cuda_isHistoryEnabled()
        sizes = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
        assert 12345 in sizes
        (root,) = roots()
        assert root.program is not None
        assert root.program.allocated_bytes == 2 * 256
        del mark
    finally:
        torch.cuda.memory._record_memory_history(None)


def test_compiled_training_is_attributed() -> None:
    configure(programs=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    ).cuda()
    with use_in_inductor():
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            compiled(torch.randn(32, 64, device="cuda")).square().mean().backward()
            model.zero_grad()
    nodes = list(manager().nodes())
    assert len(nodes) == 2
    for node in nodes:
        assert node.program is not None
        for instant in range(len(node.program.events) + 1):
            parts = explain_replay(node, instant)
            assert parts.reserved == reserved()
            assert parts.free >= 0
        peak = explain_replay(node)
        # 99 % of what is live at the peak, rounding aside, belongs to a node.
        live = peak.live - peak.rounding
        assert peak.attributed >= 0.99 * (live - peak.workspace)
        assert any(s.name.startswith("buf") for s in node.program.storages)
    # The backward's peak includes what the forward saved for it.
    assert set(explain_replay(nodes[1]).nodes) == {nodes[0].number, nodes[1].number}

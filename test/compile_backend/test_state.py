"""Persistent state and checkpointed inputs of compiled code, as its graphs tell them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memprof
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import timelines
from memprof.profiler.model import Category, GraphKind, Profile

N = 64


class Cached(nn.Module):
    """A cache in a buffer, one in an attribute, one that comes as an argument; a constant table."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, N))
        self.register_buffer("table", torch.ones(8, N))
        self.norm = nn.BatchNorm1d(N)
        self.kept = torch.zeros(8, N)
        torch._dynamo.mark_static_address(self.kept)

    def forward(self, x: Tensor, given: Tensor, written: Tensor) -> Tensor:
        self.cache[0] = x[0]
        self.kept[1] = x[0]
        given[2] = x[0]
        written.mul_(2)
        return self.norm(x) + self.cache + self.table + self.kept + given + written


def inputs_of(profile: Profile, kind: GraphKind) -> dict[str, Category]:
    (graph,) = (g for g in profile.graphs if g.kind is kind)
    return {(v.fqn or v.name).rpartition(".")[2]: v.category for v in graph.inputs}


def test_what_a_graph_writes_to_and_keeps_is_persistent_state() -> None:
    module = Cached()
    given = torch.zeros(8, N)
    torch._dynamo.mark_static_address(given)
    compiled = torch.compile(module, backend="memprof")
    with memprof.profile() as session, torch.no_grad():
        for _ in range(2):
            compiled(torch.ones(8, N), given, torch.ones(8, N))
    found = inputs_of(session.profile(), GraphKind.INFERENCE)
    state = {name for name, category in found.items() if category is Category.PERSISTENT_STATE}
    assert {"cache", "running_mean", "running_var"} <= state
    assert any("given" in name for name in state)
    assert any("kept" in name for name in state)
    assert found["table"] is Category.PARAMETER
    assert found["weight"] is Category.PARAMETER
    # Written to as well, but nobody said that it stays.
    written = next(c for name, c in found.items() if "written" in name)
    assert written is Category.INPUT


def test_a_cache_that_is_let_go_of_is_there_no_more() -> None:
    """It is no module's, whose memory is watched anyway."""

    def state(profile: Profile, call: int) -> int:
        live = timelines(profile)["cpu"].live_at(call, 0)
        parts = Attribution(profile).breakdown(live, View.CATEGORY).parts
        return {part.key: part.nbytes for part in parts}.get("persistent_state", 0)

    def write(x: Tensor, given: Tensor) -> Tensor:
        given[2] = x[0]
        return given + x

    compiled, other = (torch.compile(f, backend="memprof") for f in (write, torch.sin))
    given = torch.zeros(8, N)
    torch._dynamo.mark_static_address(given)
    with memprof.profile() as session, torch.no_grad():
        for _ in range(3):
            compiled(torch.ones(8, N), given)
        other(torch.ones(8, N))
        del given
        other(torch.ones(8, N))
    profile = session.profile()
    assert [state(profile, i) for i in range(5)] == [4 * 8 * N] * 4 + [0]


def test_statistics_that_are_read_alone_are_part_of_the_model() -> None:
    compiled = torch.compile(nn.BatchNorm1d(N).eval(), backend="memprof")
    with memprof.profile() as session, torch.no_grad():
        compiled(torch.ones(8, N))
    found = inputs_of(session.profile(), GraphKind.INFERENCE)
    assert found["running_mean"] is Category.PARAMETER


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(N, 4 * N), nn.GELU(), nn.Linear(4 * N, N)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() @ x.t() @ x
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.cos().sum()


def test_what_a_checkpointed_region_begins_with() -> None:
    module = Blocks()
    compiled = torch.compile(module, backend="memprof")
    with memprof.profile() as session:
        for _ in range(2):
            compiled(torch.ones(32, N, requires_grad=True)).backward()
    profile = session.profile()
    (forward,) = (g for g in profile.graphs if g.kind is GraphKind.FORWARD)
    kept = [v for v in forward.outputs if v.category is Category.CHECKPOINTED_INPUT]
    assert [v.nbytes for v in kept] == [4 * 32 * N] * 3
    (backward,) = (g for g in profile.graphs if g.kind is GraphKind.BACKWARD)
    saved = [v for v in backward.inputs if v.category is Category.CHECKPOINTED_INPUT]
    assert len(saved) == 3
    # They are live under that name when the forward has ended.
    timeline = timelines(profile)["cpu"]
    end = len(forward.programs[profile.calls.program[0]].events)
    parts = Attribution(profile).breakdown(timeline.live_at(0, end), View.CATEGORY).parts
    by_name = {part.key: part.nbytes for part in parts}
    assert by_name["checkpointed_input"] == 3 * 4 * 32 * N
    # AND what the backward computes again is an activation while it is there: at most the output of
    # a block's first linear, of its GELU, and of the last block, whose cosine is differentiated.
    # Gradients as large as these are none.
    live = [timeline.live_at(1, i) for i in range(len(backward.programs[0].events) + 1)]
    found = [
        {part.key: part.nbytes for part in Attribution(profile).breakdown(one, View.CATEGORY).parts}
        for one in live
    ]
    activations = [one.get("activation", 0) for one in found]
    assert max(activations) == activations[0] + 4 * 32 * (4 * N + 4 * N + N), activations
    assert max(one.get("temporary", 0) for one in found) >= 4 * 32 * 4 * N

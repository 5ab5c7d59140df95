"""Replayed calls in the timeline: the CPU arena, and graph trees on the simulated device."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from memprof.profiler import DataFlowProfile, profile_memory
from memprof.profiler.dataflow import peak_report
from memprof.profiler.dataflow.live import by_category
from memprof.profiler.dataflow.to_model import data_flow_columns
from memprof.profiler.model import Category

from . import ground_truth
from .models import Case, mlp, optimizer, profiled, train, transformer

pytestmark = pytest.mark.zero_kernels

Made = Counter[tuple[int, "str | None", Category]]


def made_in_compiled_code(profile: DataFlowProfile) -> Made:
    """(bytes, FX node, category) of every storage that compiled code made, replays included."""
    made: Made = Counter()
    for storage in range(len(profile.storages)):
        owner = profile.owner(storage)
        if owner is not None:
            node, size = owner.node, int(profile.storages.size[storage])
            made[size, node.name if node else None, profile.category(storage)] += 1
    return made


def compiled_profile(
    case: Case, graphs: bool, steps: int = 2
) -> tuple[DataFlowProfile, ground_truth.Truth]:
    from memprof.compile_backend.runtime import RUNTIME

    torch._dynamo.reset()
    torch.manual_seed(0)
    opt = optimizer("adam", case.model)
    compiled = torch.compile(case.model, backend="memprof", options={"graphs": graphs})
    train(case, opt, 4, compiled)
    with profiled() as prof:
        truth = ground_truth.train(case, opt, steps, compiled)
    profile = profile_memory(
        prof, memprof_profile=RUNTIME.profile(), modules=case.model, optimizers=opt
    )
    return profile, truth


def large_mlp() -> Case:
    """Outputs and saved activations of 512 KiB, above what an arena leases."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256), torch.nn.Tanh()
    )
    return Case(model, lambda: torch.randn(512, 256))


def test_the_arena_shows_the_memory_that_plain_calls_show() -> None:
    # GIVEN the same training, in the arena and without it
    plain, _ = compiled_profile(large_mlp(), graphs=False)
    arena, truth = compiled_profile(large_mlp(), graphs=True)
    assert plain.compiled is not None
    assert arena.compiled is not None
    assert (plain.compiled.calls, plain.compiled.replayed) == (4, 0)
    assert (arena.compiled.calls, arena.compiled.replayed) == (4, 4)
    assert arena.compiled.matched == 4, arena.compiled.unmatched

    # THEN compiled code made the same buffers, of the same size and category,
    assert made_in_compiled_code(arena) == made_in_compiled_code(plain)
    # as much is live at the peak, all of it in the right category,
    peaks = [peak_report(p, "cpu") for p in (plain, arena)]
    assert peaks[1].nbytes == pytest.approx(peaks[0].nbytes, rel=0.01)
    verdict = ground_truth.judge(arena, truth)
    assert verdict.right / (verdict.total - verdict.untold) > 0.99, verdict.mistakes
    assert not peaks[1].categories.remainder
    # the arena holds at least what is in it,
    assert peaks[0].device.replay_reserved >= 0
    assert peaks[1].device.replay_reserved >= 2 * 512 * 256 * 4
    assert data_flow_columns(arena).notes[0] == (
        "4 of 4 compiled calls are known allocation by allocation, 4 of them replayed"
    )
    # and everything that was made and dropped is gone at the end.
    last = [by_category(p, "cpu").bytes[-1].sum() for p in (plain, arena)]
    assert int(last[1]) == pytest.approx(int(last[0]), rel=0.01)


def test_a_replay_without_the_arenas_own_records_ends_by_rule() -> None:
    # GIVEN a trace of the arena, analysed where nobody knows the leases any more
    from memprof.compile_backend.cpu_arena.tensors import POOL

    with_leases, _ = compiled_profile(large_mlp(), graphs=True)
    POOL.ended.clear()
    case = large_mlp()
    torch._dynamo.reset()
    compiled = torch.compile(case.model, backend="memprof", options={"graphs": True})
    opt = optimizer("adam", case.model)
    train(case, opt, 4, compiled)
    with profiled() as prof:
        train(case, opt, 2, compiled)
    POOL.ended.clear()
    from memprof.compile_backend.runtime import RUNTIME

    profile = profile_memory(
        prof, memprof_profile=RUNTIME.profile(), modules=case.model, optimizers=opt
    )
    # THEN saved activations still end in the backward that uses them
    assert profile.compiled is not None
    assert profile.compiled.replayed == 4
    saved = [
        s
        for s, row in enumerate(profile.storages.created.tolist())
        if row >= 0
        and (owner := profile.owner(s)) is not None
        and owner.storage.category.value == "activation"
        and s >= profile.storages.keys
    ]
    assert saved
    ends = [
        (int(profile.columns.scopes.start[s]), int(profile.columns.scopes.end[s]))
        for s in range(len(profile.columns.scopes))
    ]
    for s in saved:
        _, died = profile.storages.life(s)
        assert any(a <= died <= b for a, b in ends)
    bytes_ = peak_report(profile, "cpu").nbytes
    assert bytes_ >= 0.95 * peak_report(with_leases, "cpu").nbytes


def test_calls_that_are_not_replayed_get_nothing() -> None:
    plain, _ = compiled_profile(transformer(), graphs=False)
    assert plain.compiled is not None
    assert plain.compiled.replayed == 0
    assert (plain.columns.allocations.unnamed_ptr > -(1 << 61)).all()


@pytest.mark.simgpu
def test_graph_trees_show_the_memory_that_plain_calls_show() -> None:
    def on_cuda() -> Case:
        case = mlp(256)
        case.model.cuda()
        batch = case.batch
        case.batch = lambda: batch().cuda()
        return case

    plain, _ = compiled_profile(on_cuda(), graphs=False)
    trees, _ = compiled_profile(on_cuda(), graphs=True)
    assert trees.compiled is not None
    assert plain.compiled is not None
    assert (trees.compiled.calls, trees.compiled.replayed) == (4, 4), trees.compiled.unmatched
    # THEN replays show the buffers of the program
    assert made_in_compiled_code(trees) == made_in_compiled_code(plain)
    report = peak_report(trees, "cuda:0")
    assert report.device.replay_reserved > 0
    assert not report.categories.remainder
    assert report.nbytes >= 0.9 * peak_report(plain, "cuda:0").nbytes
    # and nothing in the pool is counted twice: not as memory that was there before, too.
    ranges = [r for m in trees.memory if m.device == "cuda:0" for r in m.ranges]
    present = trees.torch_categories.present
    # (The simulated device computes values with operators of the CPU, at the same addresses.)
    device = [str(d) for d in trees.columns.devices].index("cuda:0")
    for key in np.flatnonzero(trees.columns.keys.device == device):
        ptr = int(trees.columns.keys.ptr[key])
        if any(a <= ptr < b for a, b in ranges):
            assert not present[key] or trees.storages.created[key] >= 0
    assert Category.GRADIENT in {trees.category(k, 0) for k in range(len(trees.columns.keys))}


@pytest.mark.simgpu
def test_writing_to_the_pools_buffers_moves_no_bytes() -> None:
    # GIVEN a backward that is started with a tensor of eager code, which its replay copies into
    # a buffer of the pool: memory of before the trace that is not counted
    class Loss(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square().mean()

    from memprof.compile_backend.runtime import RUNTIME

    model = Loss(64, 64, device="cuda")
    compiled = torch.compile(model, backend="memprof")

    def step() -> None:
        compiled(torch.ones(8, 64, device="cuda")).backward()
        model.zero_grad()

    for _ in range(4):
        step()
    with profiled() as prof:
        step()
        step()
    found = profile_memory(prof, memprof_profile=RUNTIME.profile())
    assert found.compiled is not None
    assert found.compiled.replayed == 4
    # THEN no category has less than nothing
    assert (by_category(found, "cuda:0").bytes >= 0).all()

"""Replayed calls in the timeline: graph trees on the simulated device."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from memprof.profiler import DataFlowProfile, profile_memory
from memprof.profiler.dataflow import peak_report
from memprof.profiler.dataflow.live import by_category
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
    from memprof.compile_backend.session.runtime import RUNTIME

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

    from memprof.compile_backend.session.runtime import RUNTIME

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

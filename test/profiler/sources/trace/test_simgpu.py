"""Traces of a CUDA device with torch's real caching allocator, simulated."""

from __future__ import annotations

import gc

import pytest
import torch

from memprof.profiler import MemoryProfile, profile_memory
from memprof.profiler.live.attribution import View
from memprof.profiler.sources.trace.to_model import by_category, data_flow_columns

from .models import Case, at_peak, mlp, optimizer, profiled, train
from .test_equality import categories, nodes, nodes_of_columns, timeline

pytestmark = pytest.mark.simgpu


@pytest.fixture(autouse=True)
def _nothing_of_other_tests() -> None:
    """What they left would be released during a trace, and be unknown there."""
    gc.collect()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def mlp_on_cuda() -> Case:
    case = mlp()
    case.model.cuda()
    on_cpu = case.batch
    case.batch = lambda: on_cpu().cuda()
    return case


def test_training_on_cuda_beside_torchs_profile() -> None:
    # GIVEN the backward on the autograd engine's own thread, as always on CUDA
    case = mlp_on_cuda()
    opt = optimizer("adam", case.model)
    train(case, opt, 1)
    with profiled() as prof:
        train(case, opt, 2)
    their = prof._memory_profile()
    our = MemoryProfile(prof, corrections=False)
    assert nodes_of_columns(our) == nodes(their)
    assert categories(our) == categories(their)
    assert timeline(our) == timeline(their)

    profile = profile_memory(prof, modules=case.model, optimizers=opt)
    assert profile.devices == ["cpu", "cuda:0"]
    found = at_peak(profile, "cuda:0")
    assert found.attributed == found.total > 0
    assert found.remainder == ()
    assert (by_category(profile, "cuda:0").bytes >= 0).all()
    # Modules of the backward come from the sequence numbers, across threads.
    assert {"0", "2", "4"} <= {s.key for s in at_peak(profile, "cuda:0", View.MODULE).parts} | {
        profile.module(s) for s in range(len(profile.storages))
    }


def test_compiled_training_on_cuda() -> None:
    case = mlp_on_cuda()
    opt = optimizer("sgd", case.model)
    compiled = torch.compile(case.model, backend="memprof", options={"graphs": False})
    train(case, opt, 3, compiled)
    with profiled() as prof:
        train(case, opt, 2, compiled)
    profile = profile_memory(prof, optimizers=opt)
    assert profile.compiled_calls == 4
    assert at_peak(profile, "cuda:0").remainder == ()


def test_replays_are_not_in_a_trace_and_the_profile_says_so() -> None:
    case = mlp_on_cuda()
    compiled = torch.compile(case.model, backend="memprof", options={"graphs": True})
    opt = optimizer("sgd", case.model)
    train(case, opt, 4, compiled)
    with profiled() as prof:
        train(case, opt, 2, compiled)
    profile = profile_memory(prof, optimizers=opt)
    assert any("replays of CUDA graphs" in note for note in data_flow_columns(profile).notes)
    assert (by_category(profile, "cuda:0").bytes >= 0).all()

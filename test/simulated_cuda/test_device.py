"""The simulated device as a program sees it: memory, copies, events, CUDA graphs, values."""

from __future__ import annotations

import copy
import gc
import os

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from models import zoo

from memprof.simulated_cuda import control

pytestmark = pytest.mark.simgpu
computes = pytest.mark.skipif(
    os.environ.get("SIMGPU_VALUES", "0") in ("", "0"), reason="kernels compute nothing"
)


def test_copies_pinned_memory_and_events() -> None:
    host = torch.arange(1 << 20, dtype=torch.float32).pin_memory()
    assert host.is_pinned()
    there = host.to("cuda", non_blocking=True)
    assert torch.equal(torch.empty_like(there).copy_(there).cpu(), host)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        begin.record()
        there.zero_()
        end.record()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) > 0


def test_free_memory_is_what_the_allocator_has_not() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert before - torch.cuda.mem_get_info()[0] == 64 << 20
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(before + 1, dtype=torch.uint8, device="cuda")


def test_a_capture_executes_nothing_and_a_replay_copies_what_is_there_then() -> None:
    source = torch.arange(1024, dtype=torch.float32).cuda()
    target = torch.zeros_like(source)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    assert not target.cpu().any()
    for factor in (1, 2):
        source.copy_(torch.arange(1024, dtype=torch.float32) * factor)
        graph.replay()
        assert torch.equal(target.cpu(), source.cpu())
    pool = graph.pool()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    assert pool not in {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()}


@computes
@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "resnet", "gpt2", "llama"])
def test_training_in_graphs_gives_what_the_cpu_gives(name: str) -> None:
    # GIVEN a model without dropout, on both
    case = zoo.build(name, layers=1)
    case.model.train(name == "resnet")
    there = copy.deepcopy(case.model).cuda()
    inputs = {k: x.cuda() for k, x in case.inputs.items()}
    forward = torch.compile(there, mode="reduce-overhead")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (case.model, there)]
    before = control.calls("cudaGraphLaunch")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        expected, loss = case.loss(case.model(**case.inputs)), case.loss(forward(**inputs))
        torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=1e-3, atol=1e-4)
        expected.backward()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for p, q in zip(there.parameters(), case.model.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-2, atol=1e-3)
    assert control.calls("cudaGraphLaunch") - before >= 6


@computes
@pytest.mark.parametrize("fallback", [False, True])
def test_each_replay_draws_a_mask_of_its_own_which_its_backward_sees(fallback: bool) -> None:
    with torch._inductor.config.patch(fallback_random=fallback):
        f = torch.compile(lambda x: F.dropout(x, 0.4) * 2, mode="reduce-overhead")
        x = torch.ones(64, 32, device="cuda", requires_grad=True)
        torch.cuda.manual_seed(100)
        masks = []
        for i in range(7):
            torch.compiler.cudagraph_mark_step_begin()
            if i in (4, 6):
                torch.cuda.manual_seed(5)
            y = f(x)
            y.sum().backward()
            assert x.grad is not None
            torch.testing.assert_close(x.grad, (y != 0) * (2 / 0.6))
            x.grad = None
            masks.append((y != 0).cpu())
    assert 0.5 < masks[0].float().mean().item() < 0.7
    equal = [(i, j) for i in range(7) for j in range(i) if torch.equal(masks[i], masks[j])]
    assert equal == [(6, 4)]

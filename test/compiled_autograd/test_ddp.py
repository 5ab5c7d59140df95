"""DistributedDataParallel in two processes, with either reducer: gradients are eager DDP's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def wrapped() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Net())


def worker(rank: int, rendezvous: str) -> None:
    """Both reducers in turn; what is wrong is raised, and so reaches the test."""
    import kernels
    import torch._dynamo

    import memprof
    from memprof.profiler.model import LedgerKind

    kernels.compile_together()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{rendezvous}", rank=rank, world_size=WORLD)
    # Each rank has batches of its own, so equal gradients were averaged.
    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randn(8, 16, generator=generator) for _ in range(3)]
    eager, wanted = wrapped(), []
    for x in batches:
        eager.zero_grad()
        eager(x).square().mean().backward()
        wanted.append([p.grad.clone() for p in eager.parameters() if p.grad is not None])
    for reducer in ("ddp_optimizer", "python_reducer"):
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = reducer
        model = wrapped()
        run = torch.compile(
            model, backend="memprof", options={"compiled_autograd": True, "graphs": False}
        )
        with memprof.profile() as session:
            for x, gradients in zip(batches, wanted, strict=True):
                model.zero_grad()
                run(x).square().mean().backward()
                got = [p.grad for p in model.parameters()]
                for a, b in zip(got, gradients, strict=True):
                    torch.testing.assert_close(a, b)
        ledger = session.profile().ledger
        captured = sum(e.count for e in ledger if "captured backward" in e.reason)
        declined = [e for e in ledger if e.kind is LedgerKind.FALLBACK]
        if reducer == "python_reducer":
            assert (captured, declined) == (len(batches), []), ledger
        else:  # C++ has no description of its hooks
            assert captured == 0, ledger
            assert [e.count for e in declined] == [len(batches)], ledger
            assert "python_reducer" in declined[0].reason
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(
            filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))
        ),
    )
    start_processes(worker, (str(tmp_path / "rendezvous"),), WORLD, start_method="spawn")

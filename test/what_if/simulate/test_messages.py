"""Small messages between stages of a pipeline of which one is simulated: sizes from arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .test_simulate import simulate

STAGES = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
DTYPES = [torch.float32, torch.bfloat16, torch.bool]
first, second = (torch.empty(n, dtype=torch.long, device=device) for n in (2, 64))


def send(tensor, to):
    # As nanotron does it: how many dimensions and which type, then the sizes, then the tensor.
    first.copy_(torch.tensor([tensor.dim(), DTYPES.index(tensor.dtype)]))
    dist.send(first, to)
    assert tensor.dim() == first[0]
    second[: tensor.dim()].copy_(torch.tensor(tensor.shape))
    dist.send(second[: tensor.dim()], to)
    dist.send(tensor.contiguous(), to)


def receive(source):
    dist.recv(first, source)
    dims, dtype = first
    assert dims > 0, "nobody said of how many dimensions"
    dist.recv(second[:dims], source)
    tensor = torch.empty(tuple(second[:dims]), dtype=DTYPES[dtype], device=device)
    dist.recv(tensor, source)
    return tensor


weight = torch.nn.Parameter(torch.empty(1024, 1024, device=device))
optimizer = torch.optim.SGD([weight], 0.1)
step = 0
while True:
    # Of each step two microbatches, all of another length, each with a mask that has no gradient.
    held = []
    for rows in (256 + step, 512 + step):
        if rank == 0:
            x = torch.randn(rows, 1024, device=device)
            held.append(x @ weight)
            send(held[-1].detach(), 1)
            send(torch.ones(rows, dtype=torch.bool, device=device), 1)
        else:
            x, mask = receive(0).requires_grad_(), receive(0)
            assert x.shape == (rows, 1024) and x.dtype == torch.float32
            assert mask.shape == (rows,) and mask.dtype == torch.bool
            (x @ weight).sum().backward()
            send(x.grad, 0)
    for output in held:
        grad = receive(1)
        assert grad.shape == output.shape and grad.dtype == output.dtype
        output.backward(grad)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
"""


def notes(result: dict[str, Any], rank: int) -> list[str]:
    found: list[str] = result["ranks"][rank]["notes"]
    return found


@pytest.mark.simgpu
@pytest.mark.parametrize(
    "options",
    [["--ranks=0,1"], ["--ranks=all", "--executor=concurrent.futures:ThreadPoolExecutor"]],
    ids=["one after the other", "at once"],
)
def test_stages_answer_one_another(tmp_path: Path, options: list[str]) -> None:
    # WHEN the first stage is simulated, and then the last, or both and then the last again, for as
    # many steps: the answers of a stage that makes fewer begin anew
    result, _ = simulate(tmp_path, STAGES, "--world-size=2", "--steps=3", *options)
    # THEN the first got gradients of the sizes of its outputs, which its notes say
    assert len(notes(result, 0)) == 2
    assert all(
        "from rank 1" in n and "taken to be what this rank has sent" in n for n in notes(result, 0)
    )
    # AND the last was told by the first
    assert notes(result, 1) == []
    assert [rank["accounts"][0]["steps"] for rank in result["ranks"]] == [3, 3]


@pytest.mark.simgpu
def test_what_nobody_answers_is_named(tmp_path: Path) -> None:
    result, errors = simulate(tmp_path, STAGES, "--world-size=2", "--ranks=1", status=3)
    assert "nobody said of how many dimensions" in errors
    line = 1 + STAGES.splitlines().index("    dist.recv(first, source)")
    said, hangs, *_ = notes(result, 0)
    assert said.startswith(f"numbers from rank 0 in script.py:{line} are not known and read as 0")
    assert "--ranks 0," in said
    assert f"--pretend script.py:{line + 2}=true" in hangs


@pytest.mark.simgpu
def test_zeros_are_a_place_for_what_a_broadcast_brings(tmp_path: Path) -> None:
    # GIVEN a size that rank 0 knows, and another that all ranks know
    source = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
size = torch.tensor([dist.get_rank() == 0], device="cuda") * 1024
dist.broadcast(size, 0)
torch.empty(size.item(), device="cuda")
again = torch.tensor([512], device="cuda")
dist.broadcast(again, 0)
assert torch.empty(again.item(), device="cuda").numel() == 512
"""
    # WHEN both ranks are simulated
    result, _ = simulate(tmp_path, source, "--world-size=2", "--ranks=0,1")
    # THEN of the first size alone rank 1 knows nothing, and says so
    assert notes(result, 0) == []
    (said,) = notes(result, 1)
    assert said.startswith("the result may depend on script.py:8, which looked at a value")


@pytest.mark.simgpu
def test_what_is_reduced_as_if_every_rank_had_it(tmp_path: Path) -> None:
    source = """
import torch, torch.distributed as dist
from memprof.simulated_cuda.integers import is_known
dist.init_process_group("nccl")
flag = torch.ones(1, device="cuda")
dist.all_reduce(flag)
assert flag.item() == 4  # as many check that NCCL works
dist.all_reduce(flag, op=dist.ReduceOp.MAX)
dist.all_reduce(flag, group=dist.new_group([1, 3]))
assert flag.item() == 8
gathered = torch.empty(4, device="cuda")
dist.all_gather_into_tensor(gathered, flag)
assert gathered.tolist() == [8.0] * 4
shard = torch.ones(1, device="cuda")
dist.reduce_scatter_tensor(shard, gathered)
assert not is_known(shard) and shard.item() == 0

@torch.compile(backend="eager", fullgraph=True)
def traced(x):
    dist.all_reduce(x)
    return x + 1

assert traced(torch.rand(8, device="cuda")).shape == (8,)
"""
    simulate(tmp_path, source, "--world-size=4", "--rank=1")

"""One rank of a job, on gloo: python -m torch.distributed.run … worker.py KIND OUT STEPS.

KIND is ``ddp`` or ``fsdp2``. The job runs with inductor, and then again with memprof into the
profile OUT. Rank 0 prints how many collectives its process group ran each time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[2]))

import kernels

import memprof

WIDTH, LAYERS = 64, 2


class Layer(nn.Module):
    """Uneven, so that shards of two and of four ranks differ."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH + 1), nn.Linear(3 * WIDTH + 1, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(x)))
        return x + y


def build(kind: str, backend: str) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(LAYERS)], nn.Linear(WIDTH, 8))
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
        return torch.compile(wrapped, backend=backend)  # type: ignore[return-value]
    # By default it would be on CUDA where there is any.
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        layer.compile(backend=backend)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def collectives() -> int:
    """Collectives that all process groups have run so far, whoever started them."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(int(group._get_sequence_number_for_group()) for group in groups)


def train(kind: str, backend: str, steps: int) -> None:
    torch._dynamo.reset()
    model = build(kind, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Each rank has its own data; rank 1 has more of it.
    x = torch.randn(48 if dist.get_rank() == 1 else 32, WIDTH)
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main(kind: str, out: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(kind, "inductor", steps)
    inductors = collectives()
    with memprof.profile(out):
        train(kind, "memprof", steps)
    # Leaving the session is counted as well.
    if dist.get_rank() == 0:
        print("collectives", inductors, collectives() - inductors)
    dist.destroy_process_group()
    # Without the interpreter's own end: DDP's reducer is collected with the GIL held and joins
    # gloo's thread, which waits for the GIL to drop its last work (seen with inductor, 2.13).
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    kernels.compile_together()
    kernels.write_zeros(True)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

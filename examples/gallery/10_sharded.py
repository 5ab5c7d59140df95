"""One rank of eight, without a GPU

FSDP2 over eight GPUs: each rank holds an eighth of the parameters, gradients and states, and
whole layers for as long as they run. The first of eight ranks is run; the others are answered
for.

    memprof simulate -q --gpu a100-40gb --world-size 8 --ranks 0 -- python 10_sharded.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
layers = [nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True) for _ in range(16)]
model = nn.Sequential(*layers).cuda()
for layer in layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(2, 512, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

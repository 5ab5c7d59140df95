"""Reserved is not allocated

Lengths that differ from step to step leave holes in the allocator's segments that later tensors
do not fit into: a part of what is reserved is *free inside segments*.
`PYTORCH_ALLOC_CONF=expandable_segments:True` grows segments instead of taking new ones, and the
same command with it shows what that saves here.

    memprof simulate -q --gpu rtx-4090 --steps 12 -- python 06_fragmentation.py
"""

import torch
from torch import nn

model = nn.Sequential(
    *[nn.TransformerEncoderLayer(1024, 16, batch_first=True) for _ in range(8)]
).cuda()
optimizer = torch.optim.SGD(model.parameters())
for length in (300, 700, 500, 900, 620, 1100, 840, 1300, 980, 1500, 1180, 1700):
    model(torch.randn(4, length, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

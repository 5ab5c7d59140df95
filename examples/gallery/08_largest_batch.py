"""The largest batch that fits, found by trying

Few sizes are run. The largest that fits is one that was seen to, and the next was seen not to; what
stands in its way is named.

    memprof fit -q --gpu rtx-4090 --vary BATCH=1..64 -- python 08_largest_batch.py {BATCH}
"""

import sys

import torch
from torch import nn

batch = int(sys.argv[1])
layers = [nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(12)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(batch, 512, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

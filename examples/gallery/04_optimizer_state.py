"""The optimizer is the largest thing on the GPU

0.5 billion parameters in float32 under AdamW: parameters, gradients and two numbers a parameter
that the optimizer keeps. At this batch the activations are the small part, so that a smaller
batch does not help; another optimizer, a smaller type or sharding does.

    memprof simulate -q --gpu rtx-4090 -- python 04_optimizer_state.py
"""

import torch
from torch import nn

layers = [nn.TransformerEncoderLayer(1536, 16, 6144, batch_first=True) for _ in range(18)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(1, 256, 1536, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

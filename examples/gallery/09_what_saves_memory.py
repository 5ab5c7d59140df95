"""Changes that save memory, measured rather than advised

Each change that memprof knows is tried on the unmodified script: the table has what it saved
here.

    memprof fit -q --gpu rtx-4090 --try -- python 09_what_saves_memory.py
"""

import torch
from torch import nn

layers = [nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(8)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(8, 512, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

"""It will not fit, and what would be there at that moment

The script is asked for a GPU of 24 GiB and needs more. The simulation goes on with ample memory,
so that the whole need is known, and says where the request was made that failed.

    memprof simulate -q --gpu rtx-3090 -- python 07_out_of_memory.py
"""

import torch
from torch import nn

layers = [nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True) for _ in range(24)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.randn(8, 512, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

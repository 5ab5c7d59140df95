"""Scores of attention, kept for the backward

Attention that is written out keeps scores, weights and dropped weights, each of heads x length x
length, in every layer. `scaled_dot_product_attention` keeps none of them. The line that makes
them is in the table by line.

    memprof simulate -q --gpu a100-40gb -- python 05_attention.py
"""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return x + (self.drop(weights) @ v).transpose(1, 2).flatten(2)


model = nn.Sequential(*[Attention() for _ in range(8)]).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(
        torch.randn(4, 2048, 1024, device="cuda", dtype=torch.bfloat16)
    ).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

"""Activations that a block keeps for its backward, and what to do about it

Eight blocks of a transformer's feed-forward part. The report names the module whose activations
cost most, the line that makes them, and the call that computes them again instead.

    python 02_mlp.py && memprof report 02_mlp.memprof
"""

import torch
from torch import nn

import memprof


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


model = torch.compile(nn.Sequential(*[Block(128) for _ in range(8)]), backend="memprof")
with memprof.profile("02_mlp.memprof"):
    for _ in range(2):
        model(torch.randn(1024, 128)).square().mean().backward()

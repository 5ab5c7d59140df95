"""The last layer and the loss are most of the peak

A small language model with a large vocabulary. The logits are there in the type of the model and,
for the loss, in float32; the backward makes their gradient. A loss in chunks, or a fused one, has
none of the three whole.

    python 01_logits.py && memprof report 01_logits.memprof
"""

import torch
from torch import nn

import memprof


class Model(nn.Module):
    def __init__(self, vocabulary: int = 16000, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


model = torch.compile(Model().bfloat16(), backend="memprof")
with memprof.profile("01_logits.memprof"):
    for _ in range(2):
        model(torch.randint(16000, (4, 256)), torch.randint(16000, (4, 256))).backward()

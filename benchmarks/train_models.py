"""Trains a model at real size as plain scripts do: what the proof simulates and measures.

    python benchmarks/train_models.py gpt2 --batch 8 --backend memprof

It knows nothing of the simulated device. GPT-2 124M (1,024 tokens) and Llama 3.2 1B with LoRA of
rank 16 on queries and values (2,048 tokens, weights in bf16); bf16 autocast, AdamW. To float16
there is a gradient scaler.
"""

from __future__ import annotations

import argparse
from typing import Any

import memory_models as models
import torch
from torch import Tensor, nn


class LoRA(nn.Module):
    """A linear layer that stays as it is, and what is trained beside it.

    Args:
        base: the layer.
        rank: of the product that is added.
    """

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def llama_lora() -> nn.Module:
    """Llama 3.2 1B in bf16, with LoRA on queries and values."""
    model = models.Llama(16).requires_grad_(False)
    for block in model.blocks:
        attention: Any = block.attention
        attention.q, attention.v = LoRA(attention.q), LoRA(attention.v)
    return model.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("gpt2", "llama-lora"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backend", help="of torch.compile; by default none")
    parser.add_argument("--dtype", default="bfloat16", help="of autocast; float32 for none")
    parser.add_argument("--fused", action="store_true", help="AdamW in one kernel")
    parser.add_argument("--checkpoint", action="store_true", help="each block")
    parser.add_argument("--grow", action="store_true", help="sequences that grow from step to step")
    args = parser.parse_args()

    # cuDNN is not simulated, and its attention would be the default on some GPUs.
    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.device("meta"):
        module = models.Loss(models.GPT2(12) if args.model == "gpt2" else llama_lora())
    module.to_empty(device="cuda").train()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    if args.checkpoint:
        models.checkpoint_blocks(module.model)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=args.fused)
    tokens = 1024 if args.model == "gpt2" else 2048
    x = torch.zeros(args.batch, tokens, dtype=torch.long, device="cuda")
    step: Any = torch.compile(module, backend=args.backend) if args.backend else module
    dtype = getattr(torch, args.dtype)
    scaler = torch.amp.GradScaler(enabled=dtype is torch.float16)
    for i in range(args.steps):
        optimizer.zero_grad()
        n = tokens * (i + 1) // args.steps if args.grow else tokens
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            loss = step(x[:, :n], x[:, :n])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()

"""Trains a model at real size as plain scripts do: what `bench-what-if` runs.

    python benchmarks/train_models.py gpt2 --batch 8 --backend memprof

It knows nothing of the simulated device. GPT-2 124M (1,024 tokens), Llama 3.2 1B with LoRA of rank
16 on queries and values (2,048 tokens, weights in bf16) and ResNet-50 (224 x 224); bf16 autocast,
AdamW (ResNet-50: SGD with momentum). To float16 there is a gradient scaler.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import memory_models as models
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


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
        result: Tensor = self.base(x) + 2.0 * self.up(self.down(x))
        return result


class Llama(models.Llama):
    """Llama 3.2 1B in bf16, with LoRA on queries and values."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.requires_grad_(False)
        for block in self.blocks:
            attention: Any = block.attention
            attention.q, attention.v = LoRA(attention.q), LoRA(attention.v)
        self.to(torch.bfloat16)


def resnet50(layers: int) -> nn.Module:
    from account_zoo import ResNet50

    return ResNet50()


MODELS: dict[str, tuple[Callable[[int], nn.Module], int, int, int]] = {
    "gpt2": (models.GPT2, 12, 8, 1024),
    "llama-lora": (Llama, 16, 2, 2048),
    "resnet50": (resnet50, 0, 64, 0),
}
"""How each is built, its layers, batch and tokens of a sequence."""


class WithLoss(nn.Module):
    """A model and its loss, as one module that can be compiled."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.model(x)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--layers", type=int, help="fewer than published")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backend", help="of torch.compile; by default none")
    parser.add_argument("--dtype", default="bfloat16", help="of autocast; float32 for none")
    parser.add_argument("--fused", action="store_true", help="AdamW in one kernel")
    parser.add_argument("--checkpoint", action="store_true", help="each block (not resnet50)")
    parser.add_argument("--grow", action="store_true", help="sequences that grow from step to step")
    args = parser.parse_args()

    build, layers, batch, tokens = MODELS[args.model]
    batch = args.batch or batch
    # cuDNN is not simulated, and its attention would be the default on some GPUs.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    with torch.device("meta"):
        module = WithLoss(build(args.layers or layers))
    module.to_empty(device="cuda").train()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    for block in module.model.blocks if args.checkpoint else ():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    trained = [p for p in module.parameters() if p.requires_grad]
    if args.model == "resnet50":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        x = torch.empty(batch, 3, 224, 224, device="cuda")
        labels = torch.zeros(batch, dtype=torch.long, device="cuda")
    else:
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=args.fused)
        x = labels = torch.zeros(batch, tokens, dtype=torch.long, device="cuda")
    step: Any = torch.compile(module, backend=args.backend) if args.backend else module
    dtype = getattr(torch, args.dtype)
    scaler = torch.amp.GradScaler(enabled=dtype is torch.float16)
    for i in range(args.steps):
        optimizer.zero_grad()
        n = tokens * (i + 1) // args.steps if args.grow else None
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            loss = step(x[:, :n], labels[:, :n]) if args.grow else step(x, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()

"""GPT-2 124M as a textbook trains it, from its first version to the one with every optimisation.

The sizes and the order of the optimisations are those of ``ch05/10_llm-training-speed`` of
"Build a Large Language Model (From Scratch)": each ``--level`` has what the lower ones have.
Random tokens stand in for the book's text; a step, an evaluation and a generated sample are what
the original runs before it prints its figures.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = ("original", "causal-mask", "bfloat16", "native-layers", "flash", "compile")
WIDTH, LAYERS, HEADS, CONTEXT = 768, 12, 12, 1024
DROPOUT = 0.1


class ScaledNorm(nn.Module):
    """Layer normalisation out of elementwise operations, each of which saves its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class TanhGELU(nn.Module):
    """GELU out of elementwise operations."""

    def forward(self, x: Tensor) -> Tensor:
        slope = torch.sqrt(torch.tensor(2.0 / math.pi))
        return 0.5 * x * (1 + torch.tanh(slope * (x + 0.044715 * torch.pow(x, 3))))


class Attention(nn.Module):
    """Causal attention that materialises its scores.

    Args:
        stored_mask: keep a float mask per layer, or make a boolean one in each forward.
    """

    def __init__(self, stored_mask: bool) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.stored_mask = stored_mask
        if stored_mask:
            self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        key, query, value = (
            layer(x).view(batch, length, HEADS, -1).transpose(1, 2)
            for layer in (self.key, self.query, self.value)
        )
        scores = query @ key.transpose(2, 3)
        if self.stored_mask:
            hidden = self.mask.bool()[:length, :length]
        else:
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores.masked_fill_(hidden, -torch.inf)
        weights = self.dropout(torch.softmax(scores / key.shape[-1] ** 0.5, dim=-1))
        context = (weights @ value).transpose(1, 2)
        return self.out(context.reshape(batch, length, WIDTH))


class FusedAttention(nn.Module):
    """The same through ``scaled_dot_product_attention``, with one projection for all three."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv
        context = F.scaled_dot_product_attention(
            query, key, value, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
        )
        return self.out(context.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, level: int) -> None:
        super().__init__()
        native = level >= LEVELS.index("native-layers")
        flash = level >= LEVELS.index("flash")
        self.attention = FusedAttention() if flash else Attention(stored_mask=level == 0)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(approximate="tanh") if native else TanhGELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )
        self.norm1 = nn.LayerNorm(WIDTH) if native else ScaledNorm()
        self.norm2 = nn.LayerNorm(WIDTH) if native else ScaledNorm()
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm1(x)
        x = self.attention(x)
        x = self.dropout(x)
        x = x + shortcut
        shortcut = x
        x = self.norm2(x)
        x = self.mlp(x)
        x = self.dropout(x)
        return x + shortcut


class GPT2(nn.Module):
    def __init__(self, level: int, vocabulary: int) -> None:
        super().__init__()
        native = level >= LEVELS.index("native-layers")
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(Block(level) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH) if native else ScaledNorm()
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.tokens(tokens)
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(embedded + positions)
        x = self.norm(self.blocks(x))
        return self.head(x)


def loss_of(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    tokens, targets = tokens.to("cuda"), targets.to("cuda")
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def generate(model: nn.Module, tokens: Tensor, count: int) -> Tensor:
    model.eval()
    for _ in range(count):
        following = model(tokens[:, -CONTEXT:])[:, -1, :].argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, following), dim=1)
    model.train()
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=LEVELS, default="original")
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    level = LEVELS.index(args.level)

    torch.manual_seed(123)
    if level >= LEVELS.index("causal-mask"):
        torch.set_float32_matmul_precision("high")
    model: nn.Module = GPT2(level, args.vocabulary)
    if level >= LEVELS.index("compile"):
        model = torch.compile(model)
    model.to("cuda")
    if level >= LEVELS.index("bfloat16"):
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=5e-4, weight_decay=0.1, fused=True if level else None
    )

    def batch() -> tuple[Tensor, Tensor]:
        text = torch.randint(args.vocabulary, (args.batch, CONTEXT + 1))
        return text[:, :-1], text[:, 1:]

    model.train()
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, *batch())
        loss.backward()
        optimizer.step()
        if step == 0:
            with torch.no_grad():
                for _ in range(2):
                    loss_of(model.eval(), *batch()).item()
            model.train()
    generate(model, torch.randint(args.vocabulary, (1, 4)).to("cuda"), 50)


if __name__ == "__main__":
    main()

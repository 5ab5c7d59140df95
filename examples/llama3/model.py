"""Llama 3 as in "The Llama 3 Herd of Models" (arXiv 2407.21783), for training at full length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class Size:
    """What tells one Llama from another; ``hidden`` is the width inside of the MLPs."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int = 128_256


SIZES = {
    "1B": Size(16, 2048, 8192, 32, 8),
    "8B": Size(32, 4096, 14336, 32, 8),
    "70B": Size(80, 8192, 28672, 64, 8),
}


def rotations(head: int, length: int, theta: float = 500_000.0) -> Tensor:
    """Unit complex numbers ``[length, head / 2]`` that turn pairs of a head by their position."""
    frequencies = 1.0 / theta ** (torch.arange(0, head, 2).float() / head)
    angles = torch.outer(torch.arange(length, device=frequencies.device), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """``x`` ``[batch, length, heads, head]`` with each pair turned, in float32 inside."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = torch.view_as_real(pairs * turns[: x.shape[1], None, :]).flatten(3)
    return turned.type_as(x)


class Attention(nn.Module):
    """Causal attention in which groups of heads share keys and values."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.groups = size.heads // size.kv_heads
        self.q = nn.Linear(size.width, size.heads * self.head, bias=False)
        self.k = nn.Linear(size.width, size.kv_heads * self.head, bias=False)
        self.v = nn.Linear(size.width, size.kv_heads * self.head, bias=False)
        self.out = nn.Linear(size.heads * self.head, size.width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (y.view(batch, length, -1, self.head) for y in (self.q(x), self.k(x), self.v(x)))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (y.repeat_interleave(self.groups, dim=2) for y in (k, v))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.attention = Attention(size)
        self.mlp_norm = nn.RMSNorm(size.width, eps=1e-5)
        self.mlp = FeedForward(size)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Token numbers ``[batch, length]`` to logits ``[batch, length, vocabulary]``."""

    turns: Tensor

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.size, self.length = size, length
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.register_buffer("turns", rotations(size.width // size.heads, length))
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.output = nn.Linear(size.width, size.vocabulary, bias=False)

    def reset(self) -> None:
        """Give every parameter and buffer its first value, where they lie now."""
        with torch.device(self.embedding.weight.device):
            self.turns = rotations(self.size.width // self.size.heads, self.length)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        return self.output(self.norm(x))

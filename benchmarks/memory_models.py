"""GPT-2 and Llama at the sizes that people train: plain PyTorch, random weights.

They are written out because they must be the same with every version of ``transformers``. Shapes:
B sequences, T tokens, C channels.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# GPT-2


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT2(nn.Module):
    """GPT-2 124M, its vocabulary rounded up to a multiple of 128, as nanoGPT trains it.

    Args:
        layers: 12 in the published model.
        break_every: a graph break after so many blocks; 0 for none.
    """

    def __init__(self, layers: int, break_every: int = 0) -> None:
        super().__init__()
        vocabulary, width, context = 50304, 768, 1024
        self.break_every = break_every
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GPT2Block(width, 12) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T)."""
        x = self.tokens(tokens)
        x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for i, block in enumerate(self.blocks, 1):
            x = block(x)
            if self.break_every and i % self.break_every == 0:
                torch._dynamo.graph_break()
        return self.head(self.norm(x))


# Llama


def rotary(t: int, size: int) -> Tensor:
    """Cosines and sines of rotary embeddings, (2, T, size)."""
    frequencies = 1.0 / 500_000 ** (torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(t), torch.cat([frequencies, frequencies]))
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """``x`` (B, heads, T, size) turned by ``table`` (2, T, size)."""
    a, b = x.chunk(2, -1)
    return x * table[0] + torch.cat([-b, a], -1) * table[1]


class LlamaAttention(nn.Module):
    """Attention with positions turned into angles, and room for the keys and values of a sequence
    that is generated, in memory that never moves."""

    keys: Tensor | None
    values: Tensor | None

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size, self.heads, self.kv_heads = width // heads, heads, kv_heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.keys = self.values = None

    def add_cache(self, batch: int, capacity: int) -> None:
        """Make room for ``batch`` sequences of ``capacity`` tokens."""
        for name in ("keys", "values"):
            delattr(self, name)
            shape = (batch, self.kv_heads, capacity, self.size)
            buffer = torch.zeros(shape, dtype=torch.bfloat16)
            torch._dynamo.mark_static_address(buffer)
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, x: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            proj(x).view(b, t, -1, self.size).transpose(1, 2) for proj in (self.q, self.k, self.v)
        )
        q, k = rotate(q, table), rotate(k, table)
        mask = None
        if self.keys is not None and positions is not None:
            k, v = self.keys.index_copy_(2, positions, k), self.values.index_copy_(2, positions, v)
            mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class GatedMLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = LlamaAttention(width, 32, 8), GatedMLP(width, hidden)

    def forward(self, x: Tensor, table: Tensor, positions: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), table, positions)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Llama 3.2 1B: 2048 wide, 32 heads with 8 of keys and values, tied embeddings, 128,256 tokens.

    Args:
        layers: 16 in the published model.
    """

    table: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        vocabulary, width, context = 128256, 2048, 2048
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, 8192) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("table", rotary(context, width // 32), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T), which stand at ``positions`` (T) if they
        are not the first."""
        x = self.tokens(tokens)
        table = self.table[:, : tokens.shape[1]] if positions is None else self.table[:, positions]
        table = table.to(x.dtype)
        for block in self.blocks:
            x = block(x, table, positions)
        return self.head(self.norm(x))


class Loss(nn.Module):
    """A model with the loss of its logits, compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(inputs)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.flatten())


def checkpoint_blocks(model: nn.Module) -> None:
    """Keep of each block its inputs alone for the backward."""
    for block in model.blocks:  # type: ignore[union-attr]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

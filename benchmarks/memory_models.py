"""Models at the sizes that people train, for ``memory_zoo.py``: plain PyTorch, random weights.

What is here is written out because it must be the same with every version of ``transformers``, or
compile in seconds; BERT and ViT come from that library. Shapes: B sequences or images, T tokens,
C channels, H × W pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# GPT-2


@torch.library.custom_op("memory_zoo::synchronising", mutates_args=())
def synchronising(x: Tensor) -> Tensor:
    """A copy, by an operator that no capture survives, as one that asks the device for a size."""
    torch.cuda.synchronize()
    return x.clone()


synchronising.register_fake(torch.empty_like)
synchronising.register_autograd(lambda ctx, gradient: gradient)


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
        result: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return result


class GPT2(nn.Module):
    """GPT-2 124M, its vocabulary rounded up to a multiple of 128, as nanoGPT trains it.

    Args:
        layers: 12 in the published model.
        break_every: a graph break after so many blocks; 0 for none.
        synchronise_after: so many blocks come before an operator that synchronises; 0 for none.
    """

    def __init__(self, layers: int, break_every: int = 0, synchronise_after: int = 0) -> None:
        super().__init__()
        vocabulary, width, context = 50304, 768, 1024
        self.break_every, self.synchronise_after = break_every, synchronise_after
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
            if i == self.synchronise_after:
                x = synchronising(x)
        result: Tensor = self.head(self.norm(x))
        return result


# Llama, and a mixture of experts on the same blocks


def rotary(t: int, size: int) -> Tensor:
    """Cosines and sines of rotary embeddings, (2, T, size)."""
    frequencies = 1.0 / 500_000 ** (torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(t), torch.cat([frequencies, frequencies]))
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """``x`` (B, heads, T, size) turned by ``table`` (2, T, size)."""
    a, b = x.chunk(2, -1)
    return x * table[0] + torch.cat([-b, a], -1) * table[1]


class Cache(nn.Module):
    """Keys and values of ``capacity`` tokens, in memory that never moves."""

    keys: Tensor
    values: Tensor

    def __init__(self, batch: int, heads: int, capacity: int, size: int) -> None:
        super().__init__()
        shape = (batch, heads, capacity, size)
        for name in ("keys", "values"):
            buffer = torch.zeros(shape, dtype=torch.bfloat16)
            torch._dynamo.mark_static_address(buffer)
            self.register_buffer(name, buffer, persistent=False)


class LlamaAttention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size, self.heads, self.kv_heads = width // heads, heads, kv_heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.cache: Cache | None = None

    def forward(self, x: Tensor, table: Tensor, positions: Tensor | None) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            proj(x).view(b, t, -1, self.size).transpose(1, 2) for proj in (self.q, self.k, self.v)
        )
        q, k = rotate(q, table), rotate(k, table)
        mask = None
        if self.cache is not None and positions is not None:
            self.cache.keys.index_copy_(2, positions, k)
            self.cache.values.index_copy_(2, positions, v)
            k, v = self.cache.keys, self.cache.values
            mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        result: Tensor = self.out(y.transpose(1, 2).reshape(b, t, c))
        return result


class GatedMLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Experts(nn.Module):
    """Top-2 of several gated MLPs, each with room for a fixed number of tokens.

    Tokens are sent by one-hot products, as in GShard, so every shape is known beforehand; what
    exceeds an expert's room is dropped.
    """

    def __init__(self, width: int, hidden: int, experts: int, capacity: float = 1.25) -> None:
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.gate, self.up = (
            nn.Parameter(torch.empty(experts, width, hidden).normal_(0, 0.02)) for _ in range(2)
        )
        self.down = nn.Parameter(torch.empty(experts, hidden, width).normal_(0, 0.02))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        n = tokens.shape[0]
        room = int(2 * n * self.capacity / self.experts)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        sent = F.one_hot(chosen, self.experts).to(x.dtype)  # (tokens, 2, experts)
        place = (sent.flatten(0, 1).float().cumsum(0).view_as(sent) - 1) * sent
        slot = F.one_hot(place.sum(-1).long().clamp(0, room - 1), room).to(x.dtype)
        combine = torch.einsum("nke,nkr,nk->ner", sent, slot, weights.to(x.dtype))
        inner = torch.einsum("ner,nd->erd", (combine > 0).to(x.dtype), tokens)
        hidden = F.silu(torch.bmm(inner, self.gate)) * torch.bmm(inner, self.up)
        out = torch.einsum("ner,erd->nd", combine, torch.bmm(hidden, self.down))
        return out.view_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = LlamaAttention(width, heads, kv_heads), mlp

    def forward(self, x: Tensor, table: Tensor, positions: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), table, positions)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Llama(nn.Module):
    """Llama 3.2 1B: 2048 wide, 32 heads with 8 of keys and values, tied embeddings, 128,256 tokens.

    Args:
        layers: 16 in the published model.
        checkpointed: keep the inputs of blocks alone for the backward.
        width, hidden: of Llama 3.1 8B: 4096 and 14,336, whose embeddings are not tied.
        tied: embeddings.
    """

    table: Tensor

    def __init__(
        self,
        layers: int,
        context: int = 2048,
        checkpointed: bool = False,
        width: int = 2048,
        hidden: int = 8192,
        tied: bool = True,
    ) -> None:
        super().__init__()
        vocabulary = 128256
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, 32, 8, GatedMLP(width, hidden)) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.register_buffer("table", rotary(context, width // 32), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T), which stand at ``positions`` (T) if they
        are not the first."""
        x = self.tokens(tokens)
        table = self.table[:, : tokens.shape[1]] if positions is None else self.table[:, positions]
        table = table.to(x.dtype)
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, table, use_reentrant=False)
            else:
                x = block(x, table, positions)
        result: Tensor = self.head(self.norm(x))
        return result

    def add_caches(self, batch: int, capacity: int) -> None:
        """Room for the keys and values of ``batch`` sequences of ``capacity`` tokens."""
        for block in self.blocks:
            attention = block.attention
            attention.cache = Cache(batch, attention.kv_heads, capacity, attention.size)  # type: ignore[union-attr, arg-type, assignment]


class MixtureOfExperts(nn.Module):
    """1024 wide, every MLP 8 experts of 3584 of which a token takes 2: 0.1 G parameters a layer."""

    table: Tensor

    def __init__(self, layers: int, context: int = 1024) -> None:
        super().__init__()
        vocabulary, width = 32000, 1024
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, 16, 4, Experts(width, 3584, 8)) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("table", rotary(context, width // 16), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) of tokens (B, T)."""
        x = self.tokens(tokens)
        table = self.table[:, : tokens.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, table)
        result: Tensor = self.head(self.norm(x))
        return result


# A U-Net as of latent diffusion


class ResBlock(nn.Module):
    def __init__(self, inner: int, outer: int, time: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inner), nn.GroupNorm(32, outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.time = nn.Linear(time, outer)
        self.shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        result: Tensor = self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))
        return result


class ImageAttention(nn.Module):
    """Attention among pixels, then from pixels to the text."""

    def __init__(self, width: int, text: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qs = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.kvs = nn.ModuleList(nn.Linear(n, 2 * width, bias=False) for n in (width, text))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        b, c, h, w = image.shape
        x = image.flatten(2).transpose(1, 2)
        for i in range(2):
            y = self.norms[i](x)
            q = self.qs[i](y).view(b, h * w, self.heads, -1).transpose(1, 2)
            seen = text if i else y
            k, v = self.kvs[i](seen).view(b, seen.shape[1], 2, self.heads, -1).unbind(2)
            z = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2))
            x = x + self.outs[i](z.transpose(1, 2).reshape(b, h * w, c))
        x = x + self.down(F.gelu(self.up(self.norms[2](x))))
        return image + x.transpose(1, 2).reshape(b, c, h, w)


class UNet(nn.Module):
    """Widths 320, 640, 1280 and 4 → 4 channels, as in Stable Diffusion 1.5, with one residual
    block a level and way instead of two, and attention at the lower two levels."""

    def __init__(self, base: int = 320, text: int = 768) -> None:
        super().__init__()
        widths, time = (base, 2 * base, 4 * base), 4 * base
        self.time = nn.Sequential(nn.Linear(base, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(4, base, 3, padding=1)
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        self.down_attention, self.up_attention = nn.ModuleList(), nn.ModuleList()
        self.shrinks, self.grows = nn.ModuleList(), nn.ModuleList()
        inner = base
        for width in widths:
            self.downs.append(ResBlock(inner, width, time))
            self.down_attention.append(self._attention(width, base, text))
            self.shrinks.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            inner = width
        self.middle = ResBlock(inner, inner, time)
        for width in reversed(widths):
            self.grows.append(nn.Conv2d(inner, inner, 3, padding=1))
            self.ups.append(ResBlock(inner + width, width, time))
            self.up_attention.append(self._attention(width, base, text))
            inner = width
        self.norm, self.last = nn.GroupNorm(32, base), nn.Conv2d(base, 4, 3, padding=1)

    @staticmethod
    def _attention(width: int, base: int, text: int) -> nn.Module:
        return nn.Identity() if width == base else ImageAttention(width, text)

    def forward(self, latents: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Noise in latents (B, 4, H, W) at ``time`` (B, base), for text (B, T, 768)."""
        when, x, kept = self.time(time), self.first(latents), []
        for block, attention, shrink in zip(
            self.downs, self.down_attention, self.shrinks, strict=True
        ):
            x = block(x, when)
            x = attention(x, text) if isinstance(attention, ImageAttention) else x
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, when)
        for block, attention, grow in zip(self.ups, self.up_attention, self.grows, strict=True):
            x = grow(F.interpolate(x, scale_factor=2.0))
            x = block(torch.cat([x, kept.pop()], 1), when)
            x = attention(x, text) if isinstance(attention, ImageAttention) else x
        result: Tensor = self.last(F.silu(self.norm(x)))
        return result

"""A small serving engine that captures its decoder for each batch size, the way vLLM does.

All graphs share one pool, the largest batch is captured first, so that the others fit into what it
left; inputs are slices of buffers that stay; and of the outputs only addresses are kept: their
memory goes back to the pool within the capture. Run it on a GPU, or without one:

    memprof run --graphs examples/serving/engine.py
    memprof simulate --to-the-end -- python examples/serving/engine.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZES = (1, 2, 4, *range(8, 65, 8))
"""Batches that get a graph; others are padded to the next larger one."""


class Attention(nn.Module):
    """One new token for each request attends to what the cache has of it."""

    def __init__(self, width: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        cache = torch.zeros(2, batch, heads, length, width // heads)
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
        batch, width = x.shape
        q, k, v = self.qkv(x).view(batch, 3, self.heads, -1).unbind(1)
        keys, values = self.cache[:, :batch]
        keys[requests, :, positions] = k
        values[requests, :, positions] = v
        scores = (keys @ q.unsqueeze(-1)).squeeze(-1) * q.shape[-1] ** -0.5
        later = torch.arange(keys.shape[2], device=x.device) > positions.view(-1, 1, 1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.out((weights.unsqueeze(-2) @ values).reshape(batch, width))


class Block(nn.Module):
    """A layer of the decoder."""

    def __init__(self, width: int, heads: int, batch: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, batch, length)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), requests, positions)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Logits of the next token of each request."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, heads: int, batch: int, length: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, batch, length) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, requests, positions)
        return self.head(x)


class WeakTensor:
    """Where a tensor lies; the tensor made of it does not keep the memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def weak_ref(tensor: Tensor) -> Tensor:
    """A tensor over the same memory that does not keep it from being handed out again."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return torch.as_tensor(WeakTensor(tensor), device=tensor.device)


@dataclass
class Entry:
    """What there is of one batch size."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class Engine:
    """Decodes a batch of requests at a time.

    Args:
        model: for batches up to the largest of ``sizes``.
        sizes: batches that get a graph.
        weak: keep addresses of outputs only; else the outputs, each in memory of its own.
    """

    def __init__(self, model: Decoder, sizes: Sequence[int] = SIZES, weak: bool = True) -> None:
        self.model, self.weak = model, weak
        self.sizes = sorted(sizes, reverse=True)
        self.tokens = torch.zeros(self.sizes[0], dtype=torch.int64, device="cuda")
        self.positions = torch.zeros_like(self.tokens)
        self.requests = torch.arange(self.sizes[0], device="cuda")
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.entries: dict[int, Entry] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Make a graph for each batch size."""
        for size in self.sizes:
            with torch.cuda.stream(self.stream):
                self._run(size)  # whatever libraries allocate once, they allocate here
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                logits = self._run(size)
                if self.weak:
                    logits = weak_ref(logits)
            self.entries[size] = Entry(graph, logits)

    def _run(self, size: int) -> Tensor:
        return self.model(self.tokens[:size], self.requests[:size], self.positions[:size])

    def decode(self, tokens: Sequence[int], position: int) -> Tensor:
        """The next token of each request, given the last one."""
        size = min(s for s in self.sizes if s >= len(tokens))
        self.tokens[: len(tokens)] = torch.tensor(tokens, device="cuda")
        self.positions[: len(tokens)] = position
        entry = self.entries[size]
        entry.graph.replay()
        return entry.logits[: len(tokens)].argmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--keep-outputs", action="store_true", help="instead of their addresses")
    given = parser.parse_args()
    model = Decoder(
        given.vocabulary, given.width, given.layers, 8, max(given.sizes), given.length
    ).cuda()
    engine = Engine(model, given.sizes, weak=not given.keep_outputs)
    engine.capture()
    tokens = engine.decode([1, 2, 3], 0)
    print(f"{len(engine.entries)} graphs, next tokens {tokens.tolist()}")
    print(f"{torch.cuda.memory_reserved():,} B reserved")


if __name__ == "__main__":
    main()

"""What vLLM's own ``CUDAGraphWrapper`` captures around this folder's decoder, watched by memprof.

    pip install vllm
    python examples/serving/vllm_wrapper.py

The report says for each batch size by how much its graph grew the pool, and what it uses alone.
Where vLLM's C extension cannot be loaded, as on the simulated device, which has not all of cuBLAS,
the one function of it that the wrapper calls is replaced. Tried with vLLM 0.20.2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from engine import SIZES, Decoder, weak_ref

import memprof


def replace_extension() -> None:
    """Let vLLM be imported without its C extension."""
    for name in ("vllm._C", "vllm._moe_C", "vllm._C_stable_libtorch"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None)
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("weak_ref_tensor(Tensor input) -> Tensor")
    library.impl("weak_ref_tensor", weak_ref, "CUDA")
    LIBRARIES.append(library)


LIBRARIES: list[torch.library.Library] = []

try:
    importlib.import_module("vllm._C")
except ImportError:
    replace_extension()

from vllm.compilation.cuda_graph import CUDAGraphWrapper  # noqa: E402
from vllm.compilation.monitor import set_cudagraph_capturing_enabled  # noqa: E402
from vllm.config import CUDAGraphMode  # noqa: E402
from vllm.forward_context import (  # noqa: E402
    BatchDescriptor,
    ForwardContext,
    override_forward_context,
)


class Engine:
    """A model in vLLM's wrapper, captured as vLLM's model runner does: largest batch first."""

    def __init__(self, model: Decoder, sizes: Sequence[int]) -> None:
        set_cudagraph_capturing_enabled(True)
        config: Any = SimpleNamespace(compilation_config=SimpleNamespace())
        self.wrapper = CUDAGraphWrapper(model, config, CUDAGraphMode.FULL)
        self.wrapper.graph_pool = self.pool = torch.cuda.graph_pool_handle()
        self.tokens = torch.zeros(max(sizes), dtype=torch.int64, device="cuda")
        self.positions = torch.zeros_like(self.tokens)
        self.requests = torch.arange(max(sizes), device="cuda")
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for size in sorted(sizes, reverse=True):
                self.run(size, CUDAGraphMode.NONE)
                with memprof.name_graphs(f"batch {size}"):
                    self.run(size, CUDAGraphMode.FULL)

    def run(self, size: int, mode: CUDAGraphMode) -> None:
        context = ForwardContext(
            {}, {}, {}, cudagraph_runtime_mode=mode, batch_descriptor=BatchDescriptor(size)
        )
        with override_forward_context(context):
            self.wrapper(self.tokens[:size], self.requests[:size], self.positions[:size])

    @property
    def reserved(self) -> int:
        """Bytes of the pool."""
        segments = torch.cuda.memory_snapshot()
        mine = [s for s in segments if tuple(s["segment_pool_id"]) == tuple(self.pool)]
        return sum(s["total_size"] for s in mine)


def main() -> None:
    model = Decoder(vocabulary=64_000, width=512, layers=2, heads=8, batch=64, length=256).cuda()
    with memprof.watch_graphs() as graphs:
        engine = Engine(model, SIZES)
    graphs.report()
    (pool,) = graphs.profile().graph_pools
    assert pool.reserved == engine.reserved


if __name__ == "__main__":
    main()

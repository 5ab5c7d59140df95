"""Pre-trains Llama 3 with FSDP2 over all ranks, on made-up tokens: an ordinary CUDA script.

    torchrun --nproc-per-node 8 examples/llama3/train.py --size 8B --compile
    memprof simulate --gpu h100-80gb --world-size 8 -- python examples/llama3/train.py --size 8B

bf16 parameters and float32 reduction, selective activation checkpointing (every second matrix
product is computed again), fused AdamW, gradients clipped: what torchtitan published measurements
of, see docs/simulation-accuracy.md.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import SIZES, Llama
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}
"""Operators whose results are kept for the backward, of the products every second one."""


def keep_some() -> Any:
    """Contexts of a block's forward and of its second run in the backward."""
    products: dict[bool, int] = defaultdict(int)

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operator is torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        if operator in SAVED and not (is_product and products[context.is_recompute] % 2 == 0):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--batch", type=int, default=2, help="sequences of each rank")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--compile", action="store_true", help="each block")
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))

    with torch.device("meta"):
        model = Llama(SIZES[args.size], args.length)
    for i, block in enumerate(model.layers):
        block = checkpoint_wrapper(block, context_fn=keep_some, preserve_rng_state=False)
        model.layers[i] = torch.compile(block, fullgraph=True) if args.compile else block
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, block in enumerate(model.layers):
        last = i == len(model.layers) - 1  # gathered again at once: it need not go before
        fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=not last)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    model.to_empty(device="cuda")
    model.reset()

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(args.steps):
        shape = (args.batch, args.length + 1)
        tokens = torch.randint(SIZES[args.size].vocabulary, shape).cuda()
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        del logits
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        if dist.get_rank() == 0 and step % 10 == 0:
            gib = torch.cuda.max_memory_reserved() / 2**30
            print(f"step {step}: loss {loss.item():.3f}, {gib:.1f} GiB reserved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

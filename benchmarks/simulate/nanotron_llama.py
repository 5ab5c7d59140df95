"""Trains nanotron's Llama 1B with nanotron's own trainer, as its authors did on 8 H100 GPUs.

Its branch ``bench_cluster`` (July 2024) runs unmodified; tokens are made up. Of flash-attn 2.5.8
the extension is replaced by one that allocates as much (csrc/flash_attn/flash_api.cpp) and computes
nothing, since it has kernels of its own: ``FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE pip install
flash-attn==2.5.8`` installs the rest of it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SAMPLES = 1024
"""A step has so many, whatever the layout."""


def forward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lengths: Tensor, *args: Any) -> Any:
    """``varlen_fwd``: its output, the softmax's sums and the random state."""
    longest = args[4]
    out = torch.empty_like(q)
    sums = torch.empty(len(lengths) - 1, q.shape[1], longest, device=q.device)
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    return out, q, k, v, out, sums, None, state


def backward(out_grad: Tensor, q: Tensor, k: Tensor, *args: Any) -> Any:
    """``varlen_bwd``: its gradients lie in ``args``; beside them it has two tensors in float32, of
    which one is a scratch pad."""
    gradients, lengths, longest = args[3:6], args[6], args[9]
    batch, heads = len(lengths) - 1, q.shape[1]
    rows = -(-longest // 128) * 128
    columns = -(-q.shape[2] // 32) * 32
    sums = torch.empty(batch, heads, rows, device=q.device)
    torch.empty(q.shape[0] + 128 * batch, heads, columns, device=q.device)
    return *gradients, sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("dp", "tp", "pp", "batch"):
        parser.add_argument(f"--{name}", type=int, default=1)
    args = parser.parse_args()
    # As in the runs that were logged.
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    extension: Any = types.ModuleType("flash_attn_2_cuda")
    extension.varlen_fwd = forward
    extension.varlen_bwd = backward
    sys.modules["flash_attn_2_cuda"] = extension
    from nanotron.dataloader import dummy_infinite_data_generator
    from nanotron.parallel.pipeline_parallel.utils import get_input_output_pp_ranks
    from nanotron.trainer import DistributedTrainer

    settings = Path(__file__).with_suffix(".yaml").read_text()
    layout = {**vars(args), "accumulated": SAMPLES // (args.dp * args.batch)}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(settings.format(**layout))
        file.flush()
        trainer = DistributedTrainer(file.name)
    first, last = get_input_output_pp_ranks(model=trainer.model)
    tokens = dummy_infinite_data_generator(
        micro_batch_size=trainer.micro_batch_size,
        sequence_length=trainer.sequence_length,
        input_pp_rank=first,
        output_pp_rank=last,
        vocab_size=trainer.model_config.vocab_size,
        seed=trainer.config.general.seed,
        parallel_context=trainer.parallel_context,
    )
    (stage,) = trainer.config.data_stages
    trainer.train({stage.name: tokens()})


if __name__ == "__main__":
    main()

"""Trains GPT-2 (124 million parameters) in a loop of its own with Accelerate, on made-up tokens.

    python examples/simulate/gpt2_accelerate.py
    torchrun --nproc-per-node 8 examples/simulate/gpt2_accelerate.py
    memprof simulate --gpu rtx-4090 -- python examples/simulate/gpt2_accelerate.py
    memprof simulate --gpu rtx-4090 --world-size 8 -- python examples/simulate/gpt2_accelerate.py

Needs transformers and accelerate. Weights are random: no download, the same memory.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8, help="sequences of each GPU, at once")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of each step")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=args.accumulate, log_with=None
    )
    set_seed(0)
    config = GPT2Config()
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
    schedule = get_cosine_schedule_with_warmup(optimizer, 100, args.steps)
    tokens = torch.randint(config.vocab_size, (4096, config.n_positions))
    loader = DataLoader(TensorDataset(tokens), batch_size=args.batch, shuffle=True, drop_last=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    step = 0
    while step < args.steps:
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    step += 1
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients and step % 10 == 0:
                mean = accelerator.gather_for_metrics(loss.detach()).mean().item()
                accelerator.print(f"step {step}: loss {mean:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()

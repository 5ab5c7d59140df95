"""LoRA fine-tuning of a model of LitGPT on its longest example, as its finetuning script runs it:
bfloat16 weights, adapters of rank 8 on queries and values, gradients of several batches added up.

Needs litgpt (0.5.11).
"""

from __future__ import annotations

import argparse

import torch
from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
from litgpt.utils import chunked_cross_entropy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="its name in litgpt")
    parser.add_argument("--length", type=int, required=True, help="tokens of the longest example")
    parser.add_argument("--batch", type=int, default=1)
    args = parser.parse_args()

    config = Config.from_name(
        args.model,
        lora_r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        lora_query=True,
        lora_value=True,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPT(config)
    torch.set_default_dtype(torch.float32)
    model.max_seq_length = args.length
    mark_only_lora_as_trainable(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.01)

    for _ in range(3):
        for _ in range(2):
            tokens = torch.randint(config.vocab_size, (args.batch, args.length)).to("cuda")
            targets = torch.randint(config.vocab_size, (args.batch, args.length)).to("cuda")
            logits = model(tokens, lm_head_chunk_size=128)
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, targets[..., 1:])
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

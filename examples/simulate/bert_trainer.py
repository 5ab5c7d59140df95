"""Fine-tunes BERT-large to classify sequences, with transformers' Trainer, on made-up tokens.

    python examples/simulate/bert_trainer.py
    torchrun --nproc-per-node 8 examples/simulate/bert_trainer.py
    memprof simulate --gpu rtx-4090 -- python examples/simulate/bert_trainer.py
    memprof simulate --gpu rtx-4090 --world-size 8 -- python examples/simulate/bert_trainer.py

Needs transformers and accelerate. Weights are random: no download, the same memory.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

LARGE = BertConfig(
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
)


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens, each with a class."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(LARGE.vocab_size, (self._length,))
        return {"input_ids": tokens, "labels": torch.tensor(index % 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="sequences of each GPU")
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--fsdp", default="", help="as TrainingArguments: 'full_shard auto_wrap'")
    args = parser.parse_args()

    set_seed(0)
    settings = TrainingArguments(
        output_dir="out/bert",
        per_device_train_batch_size=args.batch,
        max_steps=1000,
        bf16=True,
        save_strategy="no",
        report_to="none",
        fsdp=args.fsdp,
        fsdp_config={"transformer_layer_cls_to_wrap": ["BertLayer"]} if args.fsdp else None,
    )
    model = BertForSequenceClassification(LARGE)
    Trainer(model, settings, train_dataset=Tokens(args.length)).train()


if __name__ == "__main__":
    main()

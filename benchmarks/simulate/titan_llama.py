"""Llama 3.1 as torchtitan trains it: its own trainer and command line, with a made-up tokenizer and
text in place of the downloads.

    torchrun … titan_llama.py [--eager-loss] ARGUMENTS OF torchtitan.train

Needs torchtitan 0.1.0. The settings that are not given are those of its ``llama3_8b.toml``, but
for checkpoints, profiles and TensorBoard.
"""

from __future__ import annotations

import base64
import json
import random
import runpy
import string
import sys
import tempfile
from pathlib import Path

BASE_TOKENS = 128000
"""Of Llama 3's tokenizer; torchtitan adds 256 special ones."""

SETTINGS = {
    "model.name": "llama3",
    "model.flavor": "8B",
    "optimizer.name": "AdamW",
    "optimizer.lr": "3e-4",
    "training.local_batch_size": "1",
    "training.seq_len": "8192",
    "training.steps": "3",
    "training.dataset": "c4_test",
    "activation_checkpoint.mode": "selective",
    "activation_checkpoint.selective_ac_option": "op",
    "metrics.log_freq": "1",
}


def write_tokenizer(path: Path) -> None:
    """All bytes, then as many triples of them as the size asks for."""
    with path.open("w") as file:
        for rank in range(BASE_TOKENS):
            token = rank.to_bytes(1 if rank < 256 else 3, "big")
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")


def write_text(path: Path, documents: int = 400, words: int = 4000) -> None:
    path.mkdir()
    random.seed(0)
    with (path / "data.json").open("w") as file:
        for _ in range(documents):
            text = " ".join(
                "".join(random.choices(string.ascii_lowercase, k=5)) for _ in range(words)
            )
            file.write(json.dumps({"text": text}) + "\n")


def without_compiled_loss() -> None:
    """torchtitan did not compile its loss from December 2024 (e8977b0) to early 2025; 0.1.0 does
    so whenever it compiles the model."""
    from torchtitan.components.loss import cross_entropy_loss
    from torchtitan.protocols.train_spec import get_train_spec

    get_train_spec("llama3").build_loss_fn = lambda config: cross_entropy_loss


def main() -> None:
    arguments = sys.argv[1:]
    eager_loss = "--eager-loss" in arguments
    with tempfile.TemporaryDirectory() as folder:
        assets = Path(folder)
        write_tokenizer(assets / "tokenizer.model")
        write_text(assets / "text")
        settings = SETTINGS | {
            "model.tokenizer_path": str(assets / "tokenizer.model"),
            "training.dataset_path": str(assets / "text"),
            "job.dump_folder": str(assets / "outputs"),
        }
        given = [word for name, value in settings.items() for word in (f"--{name}", value)]
        rest = [word for word in arguments if word != "--eager-loss"]
        sys.argv = ["torchtitan.train", *given, *rest]  # before the first import: it is a default
        if eager_loss:
            without_compiled_loss()
        runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

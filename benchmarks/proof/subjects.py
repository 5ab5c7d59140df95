"""Models that the parts run, in published sizes on a GPU and in small ones on a simulated one.

What the tests' zoo (test/models/zoo.py) has is taken from there; the GPT is that of examples/gpt.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT / "examples" / "gpt"), str(ROOT / "benchmarks")]

from model import GPT, Config  # noqa: E402
from models import zoo  # noqa: E402
from shared import Compiler, own_code  # noqa: E402

CONTENDERS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "inductor again": {"backend": "inductor"},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "memprof": {"backend": "memprof"},
}
"""Ways to compile. The second says what the first differs by from itself."""

GPTS = {
    "124M": Config(vocabulary=50304, context=1024, width=768, heads=12, layers=12),
    "350M": Config(vocabulary=50304, context=1024, width=1024, heads=16, layers=24),
    "tiny": Config(vocabulary=512, context=64, width=64, layers=1),
}
"""GPT-2 without dropout, and one that is nearly nothing."""


def gpt(config: Config, batch: int, tokens: int) -> zoo.Case:
    """A GPT on the device, with random text of so many sequences."""
    with torch.device("cuda"):
        model, text = GPT(config), torch.randint(config.vocabulary, (batch, tokens + 1))
    return zoo.Case(model, {"tokens": text[:, :-1], "targets": text[:, 1:]}, lambda loss: loss)


def gpt_step(
    compiler: Compiler,
    name: str,
    batch: int,
    tokens: int,
    layers: int | None = None,
    train: bool = True,
) -> Callable[[], None]:
    """A step of such a GPT in bfloat16 autocast: a loss, or training with fused AdamW."""
    case = gpt(replace(GPTS[name], layers=layers or GPTS[name].layers), batch, tokens)
    model = case.model.train(train)
    forward = compiler(own_code(lambda: model(**case.inputs)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16), torch.set_grad_enabled(train):
            loss = forward()
        if train:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def of_zoo(name: str, training: bool = True) -> zoo.Case:
    """A model of the tests' zoo, with one block."""
    case = zoo.build(name, layers=1)
    case.model.train(training)
    return case


def checkpointed() -> zoo.Case:
    """GPT-2 of transformers whose block is computed again in the backward, dropout included."""
    case = of_zoo("gpt2")
    case.model.gradient_checkpointing_enable({"use_reentrant": False})
    return case


_CLIP = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1,
            "num_heads": 4, "decoder_start_token_id": 0, "use_cache": False,
        },
        lambda: {"input_ids": torch.randint(512, (4, 32)), "labels": torch.randint(512, (4, 24))},
    ),
    "Whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 512, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128, "dropout": 0.1, "max_source_positions": 64,
            "max_target_positions": 32, "decoder_start_token_id": 1, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "suppress_tokens": [],
            "begin_suppress_tokens": [], "use_cache": False,
        },
        lambda: {"input_features": torch.randn(2, 80, 128), "labels": torch.randint(512, (2, 16))},
    ),
    "CLIP": (
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {
                **_CLIP, "vocab_size": 512, "max_position_embeddings": 32, "bos_token_id": 0,
                "eos_token_id": 511,
            },
            "vision_config": {**_CLIP, "image_size": 32, "patch_size": 8},
            "projection_dim": 32,
        },
        lambda: {
            "input_ids": torch.randint(512, (4, 16)),
            "pixel_values": torch.randn(4, 3, 32, 32),
            "return_loss": True,
        },
    ),
    "Mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {
            "vocab_size": 512, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 1,
            "use_cache": False,
        },
        lambda: dict.fromkeys(("input_ids", "labels"), torch.randint(512, (4, 12))),
    ),
}  # fmt: skip
"""Model, configuration, its settings and inputs. Of Mamba it is the loop over tokens where its own
kernels are not installed."""


def of_transformers(name: str) -> zoo.Case:
    """A small model of transformers that gives its own loss."""
    import transformers

    model, config, settings, inputs = TRANSFORMERS[name]
    built = getattr(transformers, model)(getattr(transformers, config)(**settings))
    return zoo.Case(built.train(), inputs(), lambda output: output.loss)

"""Real models in small sizes, random weights, one seeded batch and one loss each.

The transformers models are built from their configuration classes: nothing is downloaded.
Compiling one takes as long as it has operators, whatever their sizes: a test to which a second
layer says nothing new asks for one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Case:
    """A model with something to feed it.

    Attributes:
        model: in training mode, float32.
        inputs: keyword arguments of its forward.
        loss: from the output of the model to a scalar.
    """

    model: nn.Module
    inputs: dict[str, Tensor]
    loss: Callable[[Any], Tensor]


def build(name: str, seed: int = 0, layers: int = 2) -> Case:
    """The model ``name`` (a key of ``MODELS``); the same seed gives the same bits.

    ``layers`` counts the blocks that are alike: a transformer's, and a ResNet's with stride 2.

    Raises:
        ValueError: there is no such model.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r} in the zoo; it has {', '.join(MODELS)}")
    torch.manual_seed(seed)
    return MODELS[name](layers)


def _cross_entropy(target: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: F.cross_entropy(logits, target.to(logits.device))


def mlp(layers: int) -> Case:
    """Three linear layers with dropout, however many are asked for."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.GELU(),
        nn.Linear(128, 10),
    )  # fmt: skip
    target = torch.randint(10, (32,))
    return Case(model, {"input": torch.randn(32, 64)}, _cross_entropy(target))


class _BasicBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class _ResNet(nn.Module):
    """ResNet with the stem for small images and one block a stage."""

    def __init__(self, halved: int, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _BasicBlock(width, width, 1),
            *(_BasicBlock(width << i, width << i + 1, 2) for i in range(halved)),
        )
        self.fc = nn.Linear(width << halved, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet(layers: int) -> Case:
    """Convolutions and BatchNorm, whose statistics the forward writes."""
    target = torch.randint(10, (8,))
    return Case(_ResNet(layers), {"x": torch.randn(8, 3, 32, 32)}, _cross_entropy(target))


def _own_loss(output: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def gpt2(layers: int) -> Case:
    """GPT-2 with its dropouts, SDPA attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=512, n_positions=64, n_embd=64, n_layer=layers, n_head=4,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(512, (4, 64))
    return Case(GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens}, _own_loss)


def bert(layers: int) -> Case:
    """BERT for sequence classification with padding, dropout on."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=512, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=256, max_position_embeddings=64, num_labels=3,
    )  # fmt: skip
    mask = torch.ones(4, 48, dtype=torch.long)
    mask[1, 30:] = 0
    inputs = {
        "input_ids": torch.randint(512, (4, 48)),
        "attention_mask": mask,
        "labels": torch.randint(3, (4,)),
    }
    return Case(BertForSequenceClassification(config).train(), inputs, _own_loss)


def llama(layers: int) -> Case:
    """Llama with grouped-query attention, rotary embeddings and RMS norms."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        attention_dropout=0.1, use_cache=False,
    )  # fmt: skip
    tokens = torch.randint(512, (4, 64))
    return Case(
        LlamaForCausalLM(config).train(), {"input_ids": tokens, "labels": tokens}, _own_loss
    )


def vit(layers: int) -> Case:
    """Vision transformer: a convolution, then an encoder."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(  # type: ignore[call-arg]
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=256,
        image_size=32, patch_size=8, num_labels=10, hidden_dropout_prob=0.1,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(10, (4,))}
    return Case(ViTForImageClassification(config).train(), inputs, _own_loss)


MODELS: dict[str, Callable[[int], Case]] = {
    "mlp": mlp,
    "resnet": resnet,
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "vit": vit,
}

"""What `make bench-account` runs beside the workloads of ``memory_zoo.py``: ResNet-50, a cache of
transformers', an EMA copy, batches of a DataLoader."""

from __future__ import annotations

from typing import Any

import memory_models as models
import torch
import torch.nn.functional as F
from memory_zoo import Compiler, Inference, Loss, Step, Training, layers, on_device, workload
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions beside a shortcut, each with its BatchNorm."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.conv1 = nn.Conv2d(inner, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """25.6 M parameters, stages of 3, 4, 6 and 3 bottlenecks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.stages = nn.ModuleList()
        inner = 64
        for i, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
            for j in range(blocks):
                self.stages.append(Bottleneck(inner, width, 2 if i and not j else 1))
                inner = 4 * width
        self.head = nn.Linear(inner, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 1000) of images (B, 3, H, W)."""
        x = self.pool(F.relu(self.norm(self.first(images))))
        for stage in self.stages:
            x = stage(x)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class Classification(nn.Module):
    """ResNet-50 and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ResNet50()

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images), labels)


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """So many batches of images and labels."""

    def __init__(self, batch: int, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.batch, 3, 224, 224), torch.zeros(self.batch, dtype=torch.long)


@workload(
    "resnet50-training",
    "64 images of a DataLoader, EMA copy of the model, bf16 autocast, fused AdamW, no cuDNN",
)
def resnet50_training(compiler: Compiler) -> Step:
    training = Training(on_device(Classification), compiler)
    average = torch.optim.swa_utils.AveragedModel(training.module)
    loader = iter(torch.utils.data.DataLoader(Images(64, 64), batch_size=None))

    def step(number: int) -> None:
        images, labels = (t.to("cuda", non_blocking=True) for t in next(loader))
        training.step(images, labels)
        average.update_parameters(training.module)

    return step


@workload("resnet50-inference", "256 images, bf16 autocast, convolutions without cuDNN")
def resnet50_inference(compiler: Compiler) -> Step:
    images = torch.empty(256, 3, 224, 224, device="cuda")
    return Inference(on_device(ResNet50), compiler, images).step


@workload(
    "static-cache-generation",
    "LlamaForCausalLM of transformers, 1B, 8 prompts of 512 tokens, then 8 one by one, StaticCache",
)
def static_cache_generation(compiler: Compiler) -> Step:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=layers(16), num_attention_heads=32, num_key_value_heads=8,
        max_position_embeddings=4096, tie_word_embeddings=True,
        torch_dtype=torch.bfloat16,
    )  # fmt: skip
    model: Any = on_device(lambda: transformers.LlamaForCausalLM(config), torch.bfloat16).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=2048)
    # As ``generate`` does: made inside of compiled code, nobody would mark it as static.
    cache.early_initialization(8, 8, 64, torch.bfloat16, torch.device("cuda"))
    forward = compiler(model.forward)
    prompt = torch.zeros(8, 512, dtype=torch.long, device="cuda")
    positions = torch.arange(512, device="cuda")

    @torch.no_grad()
    def step(number: int) -> None:
        cache.reset()
        at, token = positions, prompt
        for i in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            logits = forward(
                input_ids=token, past_key_values=cache, cache_position=at, use_cache=True
            ).logits
            token = logits[:, -1:].argmax(-1)
            at = positions[-1:] + 1 + i

    return step


@workload("gpt2-loss-outside", "as gpt2-training, the loss eager, its logits outputs of the graph")
def gpt2_loss_outside(compiler: Compiler) -> Step:
    model = on_device(lambda: models.GPT2(layers(12)))
    training = Training(Loss(compiler(model)), lambda f: f)
    tokens = torch.zeros(8, 1024, dtype=torch.long, device="cuda")
    return lambda i: training.step(tokens, tokens)

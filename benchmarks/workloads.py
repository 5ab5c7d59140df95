"""Models at real sizes and ways of running them, for `make bench-memory`.

Kernels of the simulated device compute nothing (see simulated_cuda/README.md), so a step of any
of these takes milliseconds once it is compiled, and its allocations are those of a real step. A
workload is a function that builds everything on the device, compiles what is to be compiled with
the function it is given, and returns a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import memory_models as models
import torch
from memory_models import Loss
from shared import Compiler
from torch import Tensor, nn

Step = Callable[[int], None]
"""One training step, or one request; it is given its number."""
Build = Callable[[Compiler], Step]


@dataclass(frozen=True)
class Workload:
    """Something to run.

    Attributes:
        build: makes it, on the device.
        about: sizes, and what is smaller than in the published model.
        steps: how many; the last two are the steady state.
        quick: whether it is part of ``--quick``.
    """

    build: Build
    about: str
    steps: int = 6
    quick: bool = False


WORKLOADS: dict[str, Workload] = {}
_most_layers: list[int] = []


def prepare(most_layers: int | None) -> None:
    """Leave out cuDNN, which is not simulated and would have attention, and let models that are
    made from now on have at most so many layers; None for as many as published."""
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    if most_layers is not None:
        _most_layers[:] = [most_layers]


def layers(published: int) -> int:
    """How many layers a model gets that has so many as published."""
    return min([published, *_most_layers])


def workload(about: str, **settings: Any) -> Callable[[Build], Build]:
    """Registers a function as a workload, under its name with hyphens."""

    def add(build: Build) -> Build:
        WORKLOADS[build.__name__.replace("_", "-")] = Workload(build, about, **settings)
        return build

    return add


def on_device(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model on the device, made in ``dtype``: cast afterwards, it would leave what it took before
    with the allocator."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("cuda"):
            return make()
    finally:
        torch.set_default_dtype(before)


def tokens_of(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device="cuda")


class Training:
    """Forward under autocast, backward, fused AdamW, gradients dropped."""

    def __init__(self, module: nn.Module, compiler: Compiler, autocast: bool = True) -> None:
        self.module, self.compiled, self.autocast = module, compiler(module), autocast
        self.optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def backward(self, *inputs: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.autocast):
            self.loss = self.compiled(*inputs)
        self.loss.backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, *inputs: Tensor) -> None:
        self.backward(*inputs)
        self.update()


def inference(model: nn.Module, compiler: Compiler, *batches: Tensor) -> Step:
    """One forward a step in bfloat16 autocast, without autograd, over the batches by turns."""
    forward = compiler(model.eval())
    results: list[Any] = [None]

    def step(number: int) -> None:
        results[0] = None
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            results[0] = forward(batches[number % len(batches)])

    return step


@workload("8 linear layers of 4096 and GELU, 16384 rows, bf16, AdamW: quick to compile", quick=True)
def mlp_training(compiler: Compiler) -> Step:
    def make() -> nn.Module:
        parts = (m for _ in range(layers(8)) for m in (nn.Linear(4096, 4096), nn.GELU()))
        return Summed(*parts)

    training = Training(on_device(make, torch.bfloat16), compiler, autocast=False)
    rows = torch.empty(16384, 4096, dtype=torch.bfloat16, device="cuda")
    return lambda i: training.step(rows)


class Summed(nn.Sequential):
    """Layers with a loss that needs no labels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float().square().mean()


# GPT-2 124M, and ways of training it


def gpt2(**settings: int) -> nn.Module:
    return on_device(lambda: models.GPT2(layers(12), **settings))


@workload("124M, 8 x 1024, bf16 autocast, fused AdamW", quick=True)
def gpt2_training(compiler: Compiler, **settings: int) -> Step:
    training, tokens = Training(Loss(gpt2(**settings)), compiler), tokens_of(8, 1024)
    return lambda i: training.step(tokens, tokens)


@workload("124M, 8 x 1024, bf16 autocast, all logits")
def gpt2_inference(compiler: Compiler) -> Step:
    return inference(gpt2(), compiler, tokens_of(8, 1024))


@workload("as gpt2-training, batches of 8 and 4 by turns, not dynamic", steps=8)
def gpt2_two_batches(compiler: Compiler) -> Step:
    training = Training(Loss(gpt2()), compiler)
    batches = [tokens_of(8, 1024), tokens_of(4, 1024)]
    return lambda i: training.step(batches[i % 2], batches[i % 2])


@workload("as gpt2-training, four batches of 2 x 1024 to a step")
def gpt2_accumulation(compiler: Compiler) -> Step:
    training, tokens = Training(Loss(gpt2()), compiler), tokens_of(2, 1024)

    def step(number: int) -> None:
        for _ in range(4):
            training.backward(tokens, tokens)
        training.update()

    return step


@workload("as gpt2-training, in four pieces, with a graph break after each three blocks")
def gpt2_graph_breaks(compiler: Compiler) -> Step:
    return gpt2_training(compiler, break_every=3)


@workload("as gpt2-training, all parameters move before the fifth step", steps=9)
def gpt2_rerecording(compiler: Compiler) -> Step:
    training, tokens = Training(Loss(gpt2()), compiler), tokens_of(8, 1024)

    def step(number: int) -> None:
        if number == 4:
            for parameter in training.module.parameters():
                parameter.data = parameter.data.clone()
        training.step(tokens, tokens)

    return step


# Llama 3.2 1B


def llama() -> nn.Module:
    return on_device(lambda: models.Llama(layers(16)), torch.bfloat16)


@workload("Llama 3.2 1B, 2 x 2048, bf16, fused AdamW")
def llama_training(compiler: Compiler) -> Step:
    training, tokens = Training(Loss(llama()), compiler, autocast=False), tokens_of(2, 2048)
    return lambda i: training.step(tokens, tokens)


@workload("as llama-training, 4 x 2048, each block checkpointed")
def llama_checkpointed(compiler: Compiler) -> Step:
    model = llama()
    models.checkpoint_blocks(model)
    training, tokens = Training(Loss(model), compiler, autocast=False), tokens_of(4, 2048)
    return lambda i: training.step(tokens, tokens)


@workload("Llama 3.2 1B, 8 requests of 512 tokens, then 8 one by one, static cache for 2048")
def llama_generation(compiler: Compiler) -> Step:
    model: Any = llama()
    with torch.device("cuda"):
        for block in model.blocks:
            block.attention.add_cache(8, 2048)
    forward = compiler(model.eval())
    prompt, positions = tokens_of(8, 512), torch.arange(512, device="cuda")

    @torch.no_grad()
    def step(number: int) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        token = forward(prompt, positions)[:, -1:].argmax(-1)
        for i in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            token = forward(token, positions[-1:] + 1 + i)[:, -1:].argmax(-1)

    return step


# From transformers


class Logits(nn.Module):
    """A model of transformers that returns its logits alone. Parameters are what the memory held,
    since initialising some of them is not simulated."""

    def __init__(self, kind: str, **settings: Any) -> None:
        import transformers

        super().__init__()
        name = kind.partition("For")[0]
        config = getattr(transformers, f"{name}Config")(**settings)
        with torch.device("meta"):
            self.model = getattr(transformers, kind)(config)
        self.model.to_empty(device="cuda").train()
        self.model.tie_weights()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs).logits
        return logits


def bert_large() -> nn.Module:
    return Logits(
        "BertForMaskedLM",
        vocab_size=30592,
        hidden_size=1024,
        num_hidden_layers=layers(24),
        num_attention_heads=16,
        intermediate_size=4096,
    )


@workload("BERT-large, masked words, 16 x 512, dropout, bf16 autocast")
def bert_training(compiler: Compiler) -> Step:
    training, tokens = Training(Loss(bert_large()), compiler), tokens_of(16, 512)
    return lambda i: training.step(tokens, tokens)


@workload("BERT-large, 16 x 512 and 4 x 512 by turns, not dynamic", steps=8)
def bert_inference(compiler: Compiler) -> Step:
    return inference(bert_large(), compiler, tokens_of(16, 512), tokens_of(4, 512))


@workload("ResNet-50, 64 images of a DataLoader, EMA copy of the model, bf16 autocast, no cuDNN")
def resnet50_training(compiler: Compiler) -> Step:
    training = Training(Loss(Logits("ResNetForImageClassification", num_labels=1000)), compiler)
    average = torch.optim.swa_utils.AveragedModel(training.module)
    batch = torch.zeros(64, 3, 224, 224), torch.zeros(64, dtype=torch.long)
    loader = iter(torch.utils.data.DataLoader([batch] * 64, batch_size=None))

    def step(number: int) -> None:
        images, labels = (t.to("cuda", non_blocking=True) for t in next(loader))
        training.step(images, labels)
        average.update_parameters(training.module)

    return step

"""What `make bench-memory` runs: models at real sizes, and ways of running them.

Kernels of the simulated device compute nothing (see simulated_cuda/README.md), so a step of any
of these takes milliseconds once it is compiled, and its allocations are those of a real step. A
workload is a function that builds everything on the device, compiles what is to be compiled with
the function it is given, and returns a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import memory_models as models
import torch
import torch.nn.functional as F
from torch import Tensor, nn

F_ = TypeVar("F_", bound=Callable[..., Any])
Compiler = Callable[[Any], Any]
"""``torch.compile`` with the backend that is measured, or nothing for eager."""
Step = Callable[[int], None]
"""One training step, or one request; it is told its number."""


@dataclass(frozen=True)
class Workload:
    """Something to run.

    Attributes:
        build: makes it, on the device.
        about: sizes, and what is smaller than in the published model.
        steps: how many; the last two are the steady state.
        quick: whether it is part of ``--quick``.
        dynamic: for ``torch.compile``.
    """

    build: Callable[[Compiler], Step]
    about: str
    steps: int = 6
    quick: bool = False
    dynamic: bool | None = False


WORKLOADS: dict[str, Workload] = {}
_most_layers: list[int] = []


def limit_layers(most: int) -> None:
    """Models made from now on have at most so many layers; the U-Net is what it is."""
    _most_layers[:] = [most]


def layers(published: int) -> int:
    """How many layers a model gets that has so many as published."""
    return min([published, *_most_layers])


def workload(name: str, about: str, **settings: Any) -> Callable[[F_], F_]:
    def add(build: F_) -> F_:
        WORKLOADS[name] = Workload(build, about, **settings)
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


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True)


class Loss(nn.Module):
    """A language model with its loss, compiled together."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(tokens)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Training:
    """Forward under autocast, backward, optimizer, gradients dropped."""

    def __init__(self, module: nn.Module, compiler: Compiler, autocast: bool = True) -> None:
        self.module, self.compiled, self.autocast = module, compiler(module), autocast
        self.optimizer = adamw(module)
        self.loss: Tensor | None = None

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


class Inference:
    """One forward a step, without autograd, over the batches by turns.

    Args:
        held: whether the caller still has a step's result when the next one begins.
    """

    def __init__(
        self,
        model: nn.Module,
        compiler: Compiler,
        *batches: Tensor | tuple[Tensor, ...],
        autocast: bool = True,
        held: bool = False,
    ) -> None:
        self.forward = compiler(model.eval())
        self.batches = [(b,) if isinstance(b, Tensor) else b for b in batches]
        self.autocast, self.held = autocast, held
        self.result: Tensor | None = None

    def step(self, number: int) -> None:
        if not self.held:
            self.result = None
        inputs = self.batches[number % len(self.batches)]
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=self.autocast):
            self.result = self.forward(*inputs)


# The cheapest to compile, for tests


@workload("mlp-training", "8 linear layers of 4096 and GELU, 16384 rows, bf16, AdamW", quick=True)
def mlp(compiler: Compiler) -> Step:
    def make() -> nn.Module:
        parts = (m for _ in range(layers(8)) for m in (nn.Linear(4096, 4096), nn.GELU()))
        return Summed(nn.Sequential(*parts))

    training = Training(on_device(make, torch.bfloat16), compiler, autocast=False)
    rows = torch.empty(16384, 4096, dtype=torch.bfloat16, device="cuda")
    return lambda i: training.step(rows)


class Summed(nn.Module):
    """A model with a loss that needs no labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.model(x).float().square().mean()
        return result


# GPT-2 124M, and ways of training it


def gpt2_training(compiler: Compiler, **model: int) -> Training:
    return Training(on_device(lambda: Loss(models.GPT2(layers(12), **model))), compiler)


@workload("gpt2-training", "124M, 8 x 1024, bf16 autocast, fused AdamW", quick=True)
def gpt2(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler), tokens_of(8, 1024)
    return lambda i: training.step(tokens, tokens)


@workload("gpt2-inference", "124M, 8 x 1024, bf16 autocast, all logits", quick=True)
def gpt2_inference(compiler: Compiler) -> Step:
    return Inference(on_device(lambda: models.GPT2(layers(12))), compiler, tokens_of(8, 1024)).step


@workload("gpt2-inference-held", "as gpt2-inference, each result is held until the next is there")
def gpt2_inference_held(compiler: Compiler) -> Step:
    model = on_device(lambda: models.GPT2(layers(12)))
    return Inference(model, compiler, tokens_of(8, 1024), held=True).step


@workload("gpt2-two-batches", "as gpt2-training, batches of 8 and 4 by turns, not dynamic", steps=8)
def gpt2_two_batches(compiler: Compiler) -> Step:
    training = gpt2_training(compiler)
    batches = [tokens_of(8, 1024), tokens_of(4, 1024)]
    return lambda i: training.step(batches[i % 2], batches[i % 2])


@workload(
    "gpt2-dynamic",
    "as gpt2-training, 1024 and 512 tokens by turns, dynamic=True",
    steps=8,
    dynamic=True,
)
def gpt2_dynamic(compiler: Compiler) -> Step:
    training = gpt2_training(compiler)
    batches = [tokens_of(8, 1024), tokens_of(8, 512)]
    return lambda i: training.step(batches[i % 2], batches[i % 2])


@workload("gpt2-accumulation", "as gpt2-training, four batches of 2 x 1024 to a step")
def gpt2_accumulation(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler), tokens_of(2, 1024)

    def step(number: int) -> None:
        for _ in range(4):
            training.backward(tokens, tokens)
        training.update()

    return step


@workload(
    "gpt2-graph-breaks",
    "as gpt2-training, in four pieces, with a graph break after each three blocks",
)
def gpt2_graph_breaks(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler, break_every=3), tokens_of(8, 1024)
    return lambda i: training.step(tokens, tokens)


@workload("gpt2-compiled-optimizer", "as gpt2-training, AdamW compiled (foreach, capturable)")
def gpt2_compiled_optimizer(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler), tokens_of(8, 1024)
    training.optimizer = torch.optim.AdamW(
        training.module.parameters(), foreach=True, capturable=True
    )
    update = compiler(training.optimizer.step)

    def step(number: int) -> None:
        training.backward(tokens, tokens)
        update()
        training.optimizer.zero_grad()

    return step


@workload(
    "gpt2-rerecording", "as gpt2-training, all parameters move before the fifth step", steps=9
)
def gpt2_rerecording(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler), tokens_of(8, 1024)

    def step(number: int) -> None:
        if number == 4:
            for parameter in training.module.parameters():
                parameter.data = parameter.data.clone()
        training.step(tokens, tokens)

    return step


@workload(
    "gpt2-failed-capture",
    "as gpt2-training, an operator in the middle synchronises: no capture of the forward succeeds",
)
def gpt2_failed_capture(compiler: Compiler) -> Step:
    training, tokens = gpt2_training(compiler, synchronise_after=6), tokens_of(8, 1024)
    return lambda i: training.step(tokens, tokens)


# Llama 1B


def llama(checkpointed: bool = False) -> nn.Module:
    return on_device(
        lambda: Loss(models.Llama(layers(16), checkpointed=checkpointed)), torch.bfloat16
    )


@workload("llama-training", "Llama 3.2 1B, 2 x 2048, bf16, fused AdamW")
def llama_training(compiler: Compiler) -> Step:
    training, tokens = Training(llama(), compiler, autocast=False), tokens_of(2, 2048)
    return lambda i: training.step(tokens, tokens)


@workload("llama-checkpointed", "as llama-training, 4 x 2048, each block checkpointed")
def llama_checkpointed(compiler: Compiler) -> Step:
    training, tokens = Training(llama(True), compiler, autocast=False), tokens_of(4, 2048)
    return lambda i: training.step(tokens, tokens)


@workload("llama-blocks", "as llama-training, each block compiled by itself, the rest eager")
def llama_blocks(compiler: Compiler) -> Step:
    module = llama()
    blocks: Any = module.model.blocks
    for i, block in enumerate(blocks):
        blocks[i] = compiler(block)
    training, tokens = Training(module, lambda f: f, autocast=False), tokens_of(2, 2048)
    return lambda i: training.step(tokens, tokens)


@workload(
    "llama-fsdp2",
    "8 layers of Llama 3.1 8B, 1 x 8192, each block sharded over 8 (fake) ranks and compiled",
    steps=8,
)
def llama_fsdp2(compiler: Compiler) -> Step:
    import torch.distributed as dist
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    mesh = dist.init_device_mesh("cuda", (8,))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        module = Loss(models.Llama(layers(8), 8192, width=4096, hidden=14336, tied=False))
    blocks: Any = module.model.blocks
    for i, block in enumerate(blocks):
        blocks[i] = compiler(block)
        fully_shard(blocks[i], mesh=mesh, mp_policy=precision)
    fully_shard(module, mesh=mesh, mp_policy=precision)
    module.to_empty(device="cuda")
    training, tokens = Training(module, lambda f: f, autocast=False), tokens_of(1, 8192)
    return lambda i: training.step(tokens, tokens)


@workload("llama-inference", "Llama 3.2 1B, 4 x 2048, bf16, all logits")
def llama_inference(compiler: Compiler) -> Step:
    model = on_device(lambda: models.Llama(layers(16)), torch.bfloat16)
    return Inference(model, compiler, tokens_of(4, 2048), autocast=False).step


@workload(
    "llama-generation",
    "Llama 3.2 1B, 8 requests of 512 tokens, then 8 one by one, static cache for 2048",
)
def llama_generation(compiler: Compiler) -> Step:
    model = on_device(lambda: models.Llama(layers(16)), torch.bfloat16)
    assert isinstance(model, models.Llama)
    with torch.device("cuda"):
        model.add_caches(8, 2048)
    model.eval()
    prompt, positions = tokens_of(8, 512), torch.arange(512, device="cuda")
    forward = compiler(model)

    @torch.no_grad()
    def step(number: int) -> None:
        torch.compiler.cudagraph_mark_step_begin()
        token = forward(prompt, positions)[:, -1:].argmax(-1)
        for i in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            token = forward(token, positions[-1:] + 1 + i)[:, -1:].argmax(-1)

    return step


# From transformers


def from_transformers(kind: str, **settings: Any) -> nn.Module:
    """A model with its loss and default dropout; parameters are what the memory held, since
    initialising some of them is not simulated."""
    import transformers

    model, config = {
        "bert": (transformers.BertForMaskedLM, transformers.BertConfig),
        "vit": (transformers.ViTForImageClassification, transformers.ViTConfig),
    }[kind]
    with torch.device("meta"):
        module = model(config(**settings))
    module.to_empty(device="cuda")
    module.tie_weights()
    return LossOf(module.train())


class LossOf(nn.Module):
    """A model of transformers whose inputs are positional: what goes in, and labels or nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        output = self.model(x, labels=labels)
        result: Tensor = output.logits if labels is None else output.loss
        return result


def bert_large() -> nn.Module:
    return from_transformers(
        "bert", vocab_size=30592, hidden_size=1024, num_hidden_layers=layers(24),
        num_attention_heads=16, intermediate_size=4096,
    )  # fmt: skip


@workload(
    "bert-training", "BERT-large of transformers, masked words, 16 x 512, dropout, bf16 autocast"
)
def bert_training(compiler: Compiler) -> Step:
    training, tokens = Training(bert_large(), compiler), tokens_of(16, 512)
    return lambda i: training.step(tokens, tokens)


@workload("bert-inference", "BERT-large, 16 x 512 and 4 x 512 by turns, not dynamic", steps=8)
def bert_inference(compiler: Compiler) -> Step:
    return Inference(bert_large(), compiler, tokens_of(16, 512), tokens_of(4, 512)).step


def vit_large() -> nn.Module:
    return from_transformers(
        "vit", hidden_size=1024, num_hidden_layers=layers(24), num_attention_heads=16,
        intermediate_size=4096, num_labels=1000, problem_type="single_label_classification",
    )  # fmt: skip


def images(n: int) -> Tensor:
    return torch.empty(n, 3, 224, 224, device="cuda")


@workload("vit-training", "ViT-L/16 of transformers, 32 images, bf16 autocast, fused AdamW")
def vit_training(compiler: Compiler) -> Step:
    training = Training(vit_large(), compiler)
    pixels, labels = images(32), tokens_of(32)
    return lambda i: training.step(pixels, labels)


@workload("vit-inference", "ViT-L/16, 64 images, bf16 autocast")
def vit_inference(compiler: Compiler) -> Step:
    return Inference(vit_large(), compiler, images(64)).step


# Diffusion and experts


class Denoising(nn.Module):
    """The U-Net and the loss of its noise."""

    def __init__(self) -> None:
        super().__init__()
        self.model = models.UNet()

    def forward(self, latents: Tensor, time: Tensor, text: Tensor) -> Tensor:
        return F.mse_loss(self.model(latents, time, text).float(), latents.float())


def diffusion_inputs(n: int) -> tuple[Tensor, Tensor, Tensor]:
    with torch.device("cuda"):
        return torch.empty(n, 4, 64, 64), torch.empty(n, 320), torch.empty(n, 77, 768)


@workload(
    "unet-training",
    "a U-Net of 0.3 G parameters, 8 latents of 64 x 64, bf16 autocast, convolutions without cuDNN",
)
def unet_training(compiler: Compiler) -> Step:
    training, inputs = Training(on_device(Denoising), compiler), diffusion_inputs(8)
    return lambda i: training.step(*inputs)


@workload("unet-inference", "the same U-Net, 16 latents")
def unet_inference(compiler: Compiler) -> Step:
    return Inference(on_device(models.UNet), compiler, diffusion_inputs(16)).step


@workload(
    "experts-training",
    "mixture of 8 experts, top 2, 8 layers, 0.8 G parameters, 4 x 1024, bf16, fused AdamW",
)
def experts_training(compiler: Compiler) -> Step:
    module = on_device(lambda: Loss(models.MixtureOfExperts(layers(8))), torch.bfloat16)
    training, tokens = Training(module, compiler, autocast=False), tokens_of(4, 1024)
    return lambda i: training.step(tokens, tokens)


@workload("experts-inference", "the same experts, 8 x 1024")
def experts_inference(compiler: Compiler) -> Step:
    model = on_device(lambda: models.MixtureOfExperts(layers(8)), torch.bfloat16)
    return Inference(model, compiler, tokens_of(8, 1024), autocast=False).step

"""Forward and backward of one layer, as Liger-Kernel's benchmarks measure the memory of them: ten
times, with gradients that accumulate.

Sizes are those of ``benchmark/scripts`` of Liger-Kernel at the version of the figures. Needs
liger-kernel, and transformers for the layer of ``geglu``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

BFLOAT16 = torch.bfloat16


class Head(nn.Module):
    """A linear layer to 128,256 words and the loss of them."""

    def __init__(self, liger: bool) -> None:
        super().__init__()
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        self.linear = nn.Linear(4096, 128256, bias=False, dtype=BFLOAT16)
        self.liger = liger
        self.loss = LigerFusedLinearCrossEntropyLoss() if liger else nn.CrossEntropyLoss()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.liger:
            result: Tensor = self.loss(self.linear.weight, x, targets)
        else:
            result = self.loss(self.linear(x), targets)
        return result


def cross_entropy(liger: bool, vocabulary: int) -> Callable[[], None]:
    """8 x 2,048 rows in float32."""
    from liger_kernel.transformers import LigerCrossEntropyLoss

    loss = LigerCrossEntropyLoss() if liger else nn.CrossEntropyLoss()
    logits = torch.randn(8 * 2048, vocabulary, requires_grad=True, device="cuda")
    targets = torch.randint(vocabulary, (8 * 2048, 1), device="cuda").squeeze(1)
    return lambda: loss(logits, targets).backward()


def fused_linear_cross_entropy(liger: bool, rows: int) -> Callable[[], None]:
    """Both heads are there, as in the original; one of them runs."""
    heads = [Head(liger=which).to("cuda") for which in (False, True)]
    x = torch.randn(rows, 4096, requires_grad=True, dtype=BFLOAT16, device="cuda")
    targets = torch.randint(128256, (rows, 1), device="cuda").squeeze(1)
    return lambda: heads[liger](x, targets).backward()


def geglu(liger: bool, length: int) -> Callable[[], None]:
    """The gated feed-forward layer of Llama 2 7B with a GELU, 8 sequences in bfloat16."""
    from liger_kernel.transformers import LigerGEGLUMLP
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, hidden_act="gelu_pytorch_tanh")
    x = torch.randn(8, length, 4096, device="cuda", dtype=BFLOAT16, requires_grad=True)
    layer = (LigerGEGLUMLP if liger else LlamaMLP)(config=config).to("cuda").to(BFLOAT16)

    def step() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return step


KERNELS = {f.__name__: f for f in (cross_entropy, fused_linear_cross_entropy, geglu)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("--liger", action="store_true", help="its kernel, or torch's operators")
    parser.add_argument("--size", type=int, required=True, help="vocabulary, rows or length")
    args = parser.parse_args()
    step = KERNELS[args.kernel](args.liger, args.size)
    for _ in range(10):
        step()


if __name__ == "__main__":
    main()

"""ResNet-50 (He et al. 2015), with the stride of a stage in its 3×3 convolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["resnet50"]


def normed(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and its normalization."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 around a shortcut, which is projected where shapes change."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = normed(inputs, width, 1)
        self.convolve = normed(width, width, 3, stride)
        self.expand = normed(width, outputs, 1)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            self.shortcut = normed(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.convolve(y), inplace=True)
        return F.relu(self.expand(y) + self.shortcut(x), inplace=True)


def resnet50(classes: int = 1000) -> nn.Sequential:
    """25.6 million parameters for 1000 classes."""
    layers: list[nn.Module] = [normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and stage > 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*layers)

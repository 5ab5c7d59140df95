"""A small model and its input, for whoever needs no other."""

from __future__ import annotations

import pytest
import torch
import torch.nn as nn
from torch import Tensor


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

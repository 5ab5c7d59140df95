"""Fixtures of these tests: a small model with its input, and a process without captures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo.compiled_autograd as torchs
import torch.nn as nn
from torch import Tensor

from memprof import compiled_autograd as ca


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing is captured before the test, and capturing is off after it."""
    ca.reset()
    yield
    ca.uninstall()
    torch._dynamo.reset()
    assert not torchs.compiled_autograd_enabled
    ca.reset()


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

"""The zoo on a real device: ``make test-gpu``, rehearsed by ``make prove-gpu-rehearsal``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .test_graphs_models import (
    test_dropout_is_what_it_is_without_graphs,
    test_dynamic_batch_sizes,
    test_gradient_accumulation,
    test_inference,
    test_outputs_that_are_held,
    test_the_pool_is_no_larger_than_torchs,
    test_training,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """The reference is the CPU, which has no TF32; cuDNN would take it for convolutions."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = allowed


__all__ = [
    "test_dropout_is_what_it_is_without_graphs",
    "test_dynamic_batch_sizes",
    "test_gradient_accumulation",
    "test_inference",
    "test_outputs_that_are_held",
    "test_the_pool_is_no_larger_than_torchs",
    "test_training",
]

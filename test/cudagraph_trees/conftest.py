"""Every test of graph trees begins without a manager and leaves nothing on the device."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import repetition
import torch


@pytest.fixture
def quick_collections() -> Iterator[None]:
    """A program collects garbage several times; what was there before is not looked at."""
    gc.freeze()
    yield
    repetition.thaw()  # and not gc.unfreeze(): the next test freezes again


@pytest.fixture
def whole_device() -> Iterator[None]:
    """Nothing is cached at first, and the process may have all memory afterwards."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


if torch.cuda.is_available():

    @pytest.fixture(autouse=True, scope="session")
    def _native_code() -> None:
        """What users have from their second process on, from the first test on."""
        from memprof.cudagraph_trees.replay import native

        if os.environ.get("MEMPROF_NATIVE") != "0":
            native.build()

    @pytest.fixture(autouse=True)
    def _no_leaks() -> Iterator[None]:
        from memprof.cudagraph_trees.call.container import all_managers, reset_cudagraph_trees

        from .support import live_blocks, pool_segments

        reset_cudagraph_trees()
        yield
        torch._dynamo.reset()
        reset_cudagraph_trees()
        gc.collect()
        torch.cuda.empty_cache()
        assert all_managers() == []
        assert live_blocks() == 0
        assert pool_segments() == []

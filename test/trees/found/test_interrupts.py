"""What an interrupt leaves behind."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
import torch

from ..support import graphed, step

pytestmark = pytest.mark.simgpu


@pytest.mark.parametrize("when", ["warm-up", "capture"])
def test_nothing_is_held_once_the_exception_is_gone(when: str) -> None:
    runs = []

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        runs.append(1)
        if len(runs) == (1 if when == "warm-up" else 2):
            raise KeyboardInterrupt
        return [x * 2]

    like = torch.ones(8, device="cuda")
    f = graphed(fn, [like])
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            x = torch.ones(8, device="cuda")
            held = weakref.ref(x)
            with step(), contextlib.suppress(KeyboardInterrupt):
                f([x])
            del x
            # THEN the program's inputs die with it, and need no garbage collector for that
            assert held() is None
    finally:
        gc.enable()

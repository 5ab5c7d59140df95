"""What an interrupt leaves behind."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from types import FrameType
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees.replay.liveness import detach_in_place

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


def test_grad_mode_is_what_it_was_once_the_exception_is_gone() -> None:
    def interrupted(frame: FrameType, event: str, arg: object) -> Any:
        if event == "return" and frame.f_code is torch.inference_mode.__enter__.__code__:
            raise KeyboardInterrupt
        return interrupted

    # GIVEN an output of a former run, as a replay meets it
    t = torch.ones(2, requires_grad=True) * 2
    tracing = sys.gettrace()
    # WHEN what would be a guard's beginning is interrupted, and the caller turns gradients on again
    with contextlib.suppress(KeyboardInterrupt):
        torch.set_grad_enabled(False)
        try:
            sys.settrace(interrupted)
            detach_in_place(t)
        finally:
            sys.settrace(tracing)
            torch.set_grad_enabled(True)
    # THEN no guard that dies with the traceback turns them off
    assert torch.is_grad_enabled()
    # AND it is done in inference mode too
    t = torch.ones(2, requires_grad=True) * 2
    with torch.inference_mode():
        detach_in_place(t)
    assert t.grad_fn is None

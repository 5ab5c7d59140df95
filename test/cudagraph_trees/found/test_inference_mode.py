"""Inference mode, entered and left between calls of one function."""

from __future__ import annotations

import pytest
import torch

from ..support import graphed, same, step

pytestmark = pytest.mark.simgpu


def test_a_recording_made_in_inference_mode_is_replayed_outside() -> None:
    like = torch.ones(8, device="cuda")
    f = graphed(lambda x: [x * 2, (y := x + 1), y[2:]], [like])
    for i in range(8):
        # WHEN it is recorded in inference mode, and the mode changes from call to call after that
        inside = i < 3 or i % 2 == 0
        with step(), torch.inference_mode(inside):
            out = f([torch.full((8,), float(i), device="cuda")])
        same(out[:2], [torch.full((8,), 2.0 * i), torch.full((8,), i + 1.0)])
        # THEN what it returns outside can be written to there
        if not inside:
            for t in out:
                t.add_(1)
            same(out[0], torch.full((8,), 2.0 * i + 1))


def test_an_output_that_is_held_into_inference_mode() -> None:
    like = torch.ones(8, device="cuda")
    f = graphed(lambda x: [x * 2], [like])
    for i in range(8):
        # WHEN the last output is held while the next step begins, in inference mode or not
        with step(), torch.inference_mode(i % 2 == 0):
            held = f([torch.full((8,), float(i), device="cuda")])  # noqa: F841
        with step(), torch.inference_mode(i % 2 == 1):
            out = f([torch.full((8,), float(i), device="cuda")])
        if i % 2 == 0 and i > 3:
            # THEN the one that replaces it is no tensor of inference mode outside of it
            out[0].add_(1)
            same(out[0], torch.full((8,), 2.0 * i + 1))


def test_a_gradient_outlives_a_step_that_begins_in_inference_mode() -> None:
    like = torch.ones(8, device="cuda")
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    forward = graphed(lambda w, x: [w * x], [weight, like], static=(0,), is_inference=False)
    backward = graphed(lambda g, x: [g * x], [like, like], is_backward=True)
    evaluate = graphed(lambda x: [x * 2], [like])
    for i in range(5):
        x = torch.full((8,), float(i), device="cuda")
        with step():
            forward([weight, x])
            # GIVEN a gradient that a graph made
            (weight.grad,) = backward([torch.ones(8, device="cuda"), x])
        # WHEN the next step begins in inference mode
        with step(), torch.inference_mode():
            evaluate([x])
        # THEN it can be added to
        weight.grad.add_(1)
        same(weight.grad, torch.full((8,), i + 1.0))

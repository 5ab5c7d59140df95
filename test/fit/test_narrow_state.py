"""An optimizer whose state is kept in bfloat16."""

from __future__ import annotations

import torch
from torch import nn

from memprof.simulate.applied import step_by_parameter


def test_parameters_that_are_narrow_already_keep_their_state() -> None:
    # GIVEN parameters in float32 and in bfloat16, whose state torch makes as wide as they are
    parameters = [nn.Parameter(torch.ones(4, dtype=t)) for t in (torch.float32, torch.bfloat16)]
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    said: list[int] = []
    step = step_by_parameter(torch.optim.AdamW.step, said.append)
    # WHEN it steps
    for _ in range(3):
        for p in parameters:
            p.grad = torch.ones_like(p)
        step(optimizer)
    # THEN all state is in bfloat16, and that of one of them was made narrower in each step
    state = [optimizer.state[p][name].dtype for p in parameters for name in ("exp_avg",)]
    assert state == [torch.bfloat16, torch.bfloat16]
    assert said == [2, 2, 2]

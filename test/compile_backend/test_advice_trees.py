"""Advice about graph trees on programs that really have the problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import memprof
from memprof.profiler.views.advice import Finding, FindingKind
from memprof.profiler.views.report import summarize

pytestmark = pytest.mark.simgpu

SIZE = 1 << 20


def findings(step: Any, steps: int = 8, **options: Any) -> dict[FindingKind, Finding]:
    with memprof.profile() as session:
        for i in range(steps):
            torch.compiler.cudagraph_mark_step_begin()
            step(i)
    return {f.kind: f for f in summarize(session.profile()).advice}


def moving(moves: bool, often: int = 1) -> dict[FindingKind, Finding]:
    torch._dynamo.reset()
    module = nn.Linear(1024, 1024, bias=False).cuda()
    compiled = torch.compile(module, backend="memprof", dynamic=False)
    x = torch.ones(1024, 1024, device="cuda")
    fillers = []

    def step(i: int) -> None:
        if moves and i >= 3 and i % often == 0:
            # As an optimizer does that replaces parameters' data; the old place is taken.
            module.weight.data = module.weight.data.clone()
            fillers.append(torch.empty_like(module.weight))
        compiled(x)

    with torch.no_grad():
        return findings(step, steps=8 * often)


def test_a_parameter_that_moves() -> None:
    # Now and then, so that it pays to record it again:
    finding = moving(True, often=10)[FindingKind.MOVING_ADDRESS]
    assert finding.nbytes == 4 * 1024 * 1024
    assert "recorded 7 times again" in finding.title
    assert "weight was at another address" in finding.evidence[0].text
    # in each step,
    finding = moving(True)[FindingKind.MOVING_ADDRESS]
    assert finding.nbytes == 4 * 1024 * 1024
    assert "ran 3 times without a CUDA graph" in finding.title
    assert "weight was at another address" in finding.evidence[0].text
    # and never.
    assert FindingKind.MOVING_ADDRESS not in moving(False)


def test_a_cache_that_the_graph_writes_to() -> None:
    def with_cache(static: bool) -> dict[FindingKind, Finding]:
        torch._dynamo.reset()
        cache = torch.zeros(SIZE, device="cuda")
        if static:
            torch._dynamo.mark_static_address(cache)

        def update(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            cache.add_(x)
            return cache.sum()

        compiled = torch.compile(update, backend="memprof", dynamic=False)
        x = torch.ones(1, device="cuda")
        with torch.no_grad():
            return findings(lambda i: compiled(cache, x))

    found = with_cache(False)
    assert found[FindingKind.STATIC_INPUT].nbytes == 4 * SIZE
    assert FindingKind.STATIC_INPUT not in with_cache(True)

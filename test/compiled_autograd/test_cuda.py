"""The backend option on a CUDA device: captured backwards run in graph trees."""

from __future__ import annotations

import os

import pytest
import torch
from compile_backend.test_kernel_marks import Net
from torch import Tensor

import memprof
from memprof import compiled_autograd as ca
from memprof.profiler.model import Category, GraphKind, LedgerKind, Profile, Role

pytestmark = pytest.mark.simgpu

STEPS = 7


def train(options: dict[str, object] | None) -> tuple[Profile, list[Tensor]]:
    """Gradients of the last step; ``None`` for the options runs eagerly."""
    torch._dynamo.reset()
    ca.reset()
    torch.manual_seed(0)
    model = Net().cuda()
    run = model if options is None else torch.compile(model, backend="memprof", options=options)
    batches = torch.randn(STEPS, 8, 64).cuda()
    with memprof.profile() as session:
        for x in batches:
            model.zero_grad()
            # Held until the next step has begun, as in most loops. Autograd saves the 3 as a CPU
            # scalar.
            out = run(x)
            loss = out.square().sum() / 3
            loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return session.profile(), gradients


def test_a_captured_backward_is_replayed() -> None:
    profile, _ = train({"compiled_autograd": True})
    (backward,) = (g for g in profile.graphs if g.kind is GraphKind.BACKWARD)
    assert (backward.compile_id or "").startswith("!")
    assert backward.devices == ("cuda",)
    mine = [e for e in profile.ledger if e.graph == backward.id]
    counts = {k: sum(e.count for e in mine if e.kind is k) for k in LedgerKind}
    assert counts[LedgerKind.NOT_GRAPHED] == 0, mine
    assert counts[LedgerKind.RECORD] == 1, mine
    # One call warms up, one is observed, one records.
    assert counts[LedgerKind.REPLAY] == STEPS - 3, mine
    # Entries keep the order of the process, in which an earlier test may have had the same hits.
    captures = {e.kind: e.count for e in profile.ledger if "captured backward" in e.reason}
    assert captures == {LedgerKind.COMPILED: 1, LedgerKind.CACHE_HIT: STEPS - 1}
    names = {name for name, _ in Net().named_parameters()}
    assert {v.fqn for v in backward.outputs if v.category is Category.GRADIENT} == names
    assert {v.fqn for v in backward.inputs if v.role is Role.PARAMETER} == names


@pytest.mark.skipif(
    "SIMGPU_VALUES" not in os.environ,
    reason="the simulated device computes with SIMGPU_VALUES=1 only",
)
def test_gradients_are_those_of_the_normal_engine() -> None:
    _, wanted = train(None)
    for graphs in (True, False):
        _, got = train({"compiled_autograd": True, "graphs": graphs})
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

"""A replay that fails has not been: neither its step nor its place on the path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, next_step, same

pytestmark = pytest.mark.simgpu


def books() -> tuple[object, ...]:
    m = manager()
    counted = {n.number: n.replays for n in m.nodes()}
    return m.path.step, m.path.state, m.path.node, counted, m.path.generation


def failing(call: Callable[[], Any]) -> None:
    from memprof.simulated_cuda import control as simgpu

    simgpu.fail("cudaGraphLaunch", 0, 999)
    with pytest.raises(RuntimeError, match="unknown error"):
        call()


def test_of_a_step_that_runs() -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x + 1], [x])
    g = graphed(lambda x: [x * 2], [x])
    for _ in in_steps(range(5)):
        made = f([x])
        g(list(made))
    # GIVEN a step in which the first of two functions was replayed
    next_step()
    made = f([x])
    before = books()
    # WHEN the replay of the second one fails
    failing(lambda: g(list(made)))
    # THEN the first one came last
    assert books() == before
    # and the second can follow it.
    (y,) = g(made)
    same(y, torch.full((4,), 4.0))


def test_of_one_that_begins_a_step() -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x + 1], [x])
    for _ in in_steps(range(4)):
        f([x])
    step, _, _, counted, generation = books()
    # WHEN the first replay of a step fails
    next_step()
    failing(lambda: f([x]))
    # THEN no step has begun, and nothing counts it
    assert (books()[0], books()[3], books()[4]) == (step, counted, generation)
    assert manager().path.node is None
    # AND the next one begins it.
    (y,) = f([x])
    same(y, torch.full((4,), 2.0))
    assert manager().path.step == step + 1
    (replayed,) = [e for e in manager().entries() if e.kind is LedgerKind.REPLAY]
    assert replayed.count == 3


def test_a_backward_that_fails_is_still_awaited() -> None:
    x = torch.ones(4, device="cuda")
    f = graphed(lambda x: [x + 1], [x], is_inference=False)
    b = graphed(lambda g: [g * 2], [x], is_backward=True)
    for _ in in_steps(range(4)):
        (y,) = f([x])
        (g,) = b([y])
        del y, g
    next_step()
    (y,) = f([x])
    failing(lambda: b([y]))
    assert manager().path.pending_backward
    (g,) = b([y])
    same(g, torch.full((4,), 4.0))
    assert not manager().path.pending_backward

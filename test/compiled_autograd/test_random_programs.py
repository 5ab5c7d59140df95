"""Gradients of random captured backwards are finite differences of the loss."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from memprof import compiled_autograd as ca

from .random_programs import Run, differences, leaves, program
from .support import captures


def backwards(seed: int, times: int = 2) -> Run:
    """A program's gradients, accumulated over several backwards."""
    loss = program(seed)
    run = Run(leaves(seed))
    after = seed % 3 == 0
    for p in run.leaves if after else ():
        # Adds the leaf's gradient once more: as if each backward counted twice.
        last = [torch.zeros_like(p)]

        def double(p: Any, last: list[Any] = last) -> None:
            with torch.no_grad():
                p.grad += p.grad - last[0]
                last[0] = p.grad.clone()

        p.register_post_accumulate_grad_hook(double)
    for _ in range(times):
        run.seen.clear()
        run.log.clear()
        loss(run).backward()
    return run


def check(seed: int, run: Run, times: int = 2) -> None:
    counted = times * (2 if seed % 3 == 0 else 1)
    for wanted, direction in differences(program(seed), run, seed):
        got = sum(
            float((p.grad * d).sum())
            for p, d in zip(run.leaves, direction, strict=True)
            if p.grad is not None
        )
        assert got == pytest.approx(counted * wanted, rel=1e-5, abs=1e-6), seed
    # Callbacks came when all was there: those of the last backward saw the gradients as they are.
    if run.finished:
        for p, last in zip(run.leaves, run.finished[-1], strict=True):
            assert (p.grad is None) == (last is None)
            assert last is None or torch.equal(p.grad, last), seed


CHUNKS = [range(at, at + 25) for at in range(25, 100, 25)]


@pytest.mark.parametrize(
    "seeds",
    [range(25), *(pytest.param(chunk, marks=pytest.mark.slow) for chunk in CHUNKS)],
    ids=str,
)
def test_as_it_is(seeds: range) -> None:
    """And Python code runs in the order of the normal engine, as often."""
    ran: set[str] = set()
    for seed in seeds:
        normal = backwards(seed)
        with captures() as found, ca.enable(lambda graph: graph, seed % 2 == 0):
            run = backwards(seed)
        assert found
        check(seed, run)
        check(seed, normal)
        assert run.log == normal.log, seed
        assert len(run.finished) == len(normal.finished), seed
        ran.update(entry.split()[0] for entry in run.log)
    assert {"function", "tensor", "two", "pre", "post", "callback", "in_hook"} <= ran


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 204))
def test_aot_eager(seed: int) -> None:
    with (
        captures() as found,
        ca.enable(functools.partial(torch.compile, backend="aot_eager"), False),
    ):
        run = backwards(seed)
    assert found
    check(seed, run)

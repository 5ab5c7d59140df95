"""Random programs: what goes past AOTAutograd's run-time wrapper, and through it, is the same."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config

from memprof.compile_backend import _torch_compat as compat, straight_calls as calls
from memprof.compile_backend.session.ledger import Ledger
from memprof.compile_backend.stages.describe.aot_metadata import view_and_mutation_meta
from memprof.profiler.model import GraphDescription

PROGRAMS = 25
CALLS = 3
Step = Callable[[list[Any]], Any]


def _steps(r: random.Random) -> list[Step]:
    """What each step makes of one or two of the values so far."""
    unary: list[Callable[[Tensor], Tensor]] = [
        torch.sin,
        lambda x: x * 2,
        lambda x: x.t(),
        lambda x: x.detach(),
        lambda x: x.reshape(-1).reshape(3, 3),
        lambda x: x[1:].sum(0).expand(3, 3),
        lambda x: torch.nn.functional.linear(x, x),
        lambda x: x.clone().mul_(0.5),
        lambda x: x.unsqueeze(0).squeeze(0),
        lambda x: x.argsort().to(x.dtype),
        lambda x: x.contiguous(memory_format=torch.contiguous_format),
    ]
    binary: list[Callable[[Tensor, Tensor], Tensor]] = [
        torch.add,
        torch.mul,
        torch.matmul,
        lambda x, y: torch.where(y > 0, x, y),
    ]
    steps: list[Step] = []
    for _ in range(r.randint(1, 6)):
        i, j = r.random(), r.random()
        if r.random() < 0.5:
            one = r.choice(unary)
            steps.append(lambda values, f=one, i=i: f(values[int(i * len(values))]))  # type: ignore[misc]
        else:
            two = r.choice(binary)
            steps.append(
                lambda values, f=two, i=i, j=j: f(  # type: ignore[misc]
                    values[int(i * len(values))], values[int(j * len(values))]
                )
            )
    return steps


def _program(seed: int) -> tuple[Callable[..., Any], list[bool], bool]:
    """A function of three 3 x 3 tensors, which of them take gradients, whether autocast is on."""
    r = random.Random(seed)
    steps = _steps(r)
    outputs = [r.random() for _ in range(r.randint(1, 4))]
    extra = r.choice([(), (None,), (7,)])
    writes = r.random() < 0.2
    without_grad = r.random() < 0.2

    def program(*inputs: Tensor) -> Any:
        values: list[Any] = list(inputs)
        if writes:
            values[2].add_(1)
        for i, step in enumerate(steps):
            with torch.no_grad() if without_grad and i == 0 else contextlib.nullcontext():
                values.append(step(values))
        # Mostly what was made, at times an input itself.
        return (*(values[int((0.3 + 0.7 * o) * len(values))] for o in outputs), *extra)

    return program, [r.random() < 0.7, r.random() < 0.5, False], r.random() < 0.2


def _seen(run: Callable[..., Any], seed: int, takes: list[bool], autocast: bool) -> list[Any]:
    """Everything that a program can see of a few calls."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(3, 3, generator=generator).requires_grad_(t) for t in takes]
    seen: list[Any] = []
    for call in range(CALLS):
        mode = torch.no_grad() if seed % 7 == call else contextlib.nullcontext()
        with mode, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = run(*inputs)
        flows = []
        for x in out:
            if not isinstance(x, Tensor):
                seen.append(x)
                continue
            seen += [x.detach().clone(), x.requires_grad, x.is_leaf, x._is_view(), x._version]
            seen += [x.stride(), any(x is y for y in inputs)]
            if x.requires_grad and x.dtype.is_floating_point:
                flows.append(x)
        chosen = flows[: 1 + (seed + call) % 3]
        if chosen:
            total = torch.stack([x.float().t().square().sum() for x in chosen]).sum()
            try:
                total.backward(retain_graph=seed % 5 == call)
            except RuntimeError as error:  # Donated buffers, when the graph is to be kept.
                seen.append(str(error))
        seen += [x.grad.clone() if x.grad is not None else None for x in inputs]
        seen += [x.detach().clone() for x in inputs] + [x._version for x in inputs]
    return seen


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return bool(torch.equal(a, b)) and a.dtype == b.dtype
    return bool(a == b)


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_programs(part: int, made: list[str]) -> None:
    ledger = Ledger()
    described: list[Any] = []

    def nop(gm: Any, inputs: Any) -> Any:
        return make_boxed_func(gm.forward)

    def forward(gm: Any, inputs: Any) -> Any:
        described.append(view_and_mutation_meta(compat.forward_metadata()))
        return nop(gm, inputs)

    through: Any = aot_autograd(fw_compiler=forward, bw_compiler=nop)

    def past(gm: Any, inputs: Any) -> Any:
        with calls.straight_calls(
            ledger, inputs, lambda torchs: GraphDescription(metadata=described[-1])
        ):
            return through(gm, inputs)

    for seed in range(part * PROGRAMS, (part + 1) * PROGRAMS):
        program, takes, autocast = _program(seed)
        found = []
        for backend in (past, through):
            torch._dynamo.reset()
            with functorch_config.patch(check_custom_op_aliasing=seed % 3 == 0):
                run = torch.compile(program, backend=backend, fullgraph=True, dynamic=False)
                found.append(_seen(run, seed, takes, autocast))
        assert len(found[0]) == len(found[1])
        for n, (a, b) in enumerate(zip(*found, strict=True)):
            assert _same(a, b), f"program {seed}, value {n}: {a} and {b}"
    torch._dynamo.reset()
    assert not ledger.counts()
    assert made.count("straight") > PROGRAMS / 8  # what writes keeps torch's
    assert set(made) > {"straight"}

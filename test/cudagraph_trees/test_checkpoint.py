"""Checkpoints around compiled code, and inference before training: what a backward needs stays."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from memprof.profiler.model import LedgerKind

from .support import counts, graphed, in_steps, manager, next_step, same

pytestmark = pytest.mark.simgpu

Function = Callable[..., Any]
Step = Callable[[], list[Tensor]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compiled(f: Function) -> Any:
    # Not observed, which takes another warm-up of what comes once a step.
    return torch.compile(f, backend="memprof", options={"observe_runs": 0})


def check(step: Step, expected: Step, steps: int = 4) -> None:
    """Gradients of each step are those of the other, and nothing but replays comes from the third
    on."""
    for i in range(steps):
        torch.manual_seed(i)
        wanted = expected()
        before = counts() if i else Counter()
        torch.manual_seed(i)
        same(step(), wanted)
        if i >= 2:
            assert (counts() - before).keys() == {LedgerKind.REPLAY}, counts() - before


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.head = nn.Linear(8, 5)

    def loss(self, h: Tensor, t: Tensor) -> Tensor:
        return cross_entropy(self.head(h), t, reduction="sum")

    def gradients(self, loss: Tensor) -> list[Tensor]:
        for p in self.parameters():
            p.grad = None
        loss.backward()
        return [p.grad.cpu() for p in self.parameters() if p.grad is not None]


TARGETS = [0, 1, 2, 3]


def plain(layer: Function, first: Function, h: Tensor) -> Tensor:
    return layer(h)  # type: ignore[no-any-return]


def view(layer: Function, first: Function, h: Tensor) -> Tensor:
    return layer(h).view(2, 2, 8).view(4, 8)  # type: ignore[no-any-return]


def two_calls(layer: Function, first: Function, h: Tensor) -> Tensor:
    """The result of one is held while the other comes."""
    return layer(h) * first(h)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_in_checkpoints_have_eagers_gradients_and_are_replayed(reentrant: bool) -> None:
    torch.manual_seed(1)
    model = Layers().cuda()
    layers, loss = [compiled(layer) for layer in model.layers], compiled(model.loss)
    t = torch.tensor(TARGETS, device="cuda")

    def steps(layers: Any, loss: Function, block: Function, mark: bool = False) -> Step:
        def step() -> list[Tensor]:
            if mark:
                torch.compiler.cudagraph_mark_step_begin()
            h = torch.randn(4, 8, device="cuda", requires_grad=True)
            for layer in layers:
                h = checkpoint(block, layer, layers[0], h, use_reentrant=reentrant)
            return model.gradients(loss(h, t))

        return step

    eager = model.loss
    check(steps(layers, loss, plain), steps(model.layers, eager, plain))
    check(steps(layers, eager, plain), steps(model.layers, eager, plain))
    check(steps(layers, loss, view), steps(model.layers, eager, view))
    check(steps(layers, eager, two_calls), steps(model.layers, eager, two_calls))
    check(steps(layers, loss, plain, mark=True), steps(model.layers, eager, plain))


@pytest.mark.parametrize("reentrant", [False, True])
def test_chunks_of_a_loss_in_checkpoints(reentrant: bool) -> None:
    torch.manual_seed(1)
    model = Layers().cuda()
    body, loss = compiled(nn.Sequential(*model.layers)), compiled(model.loss)
    t = torch.tensor(TARGETS * 3, device="cuda")

    def steps(body: Function, loss: Function) -> Step:
        def step() -> list[Tensor]:
            h = body(torch.randn(12, 8, device="cuda"))
            total = torch.zeros((), device="cuda")
            for chunk, targets in zip(h.chunk(3), t.chunk(3), strict=True):
                total = total + checkpoint(loss, chunk, targets, use_reentrant=reentrant)
            return model.gradients(total)

        return step

    check(steps(body, loss), steps(nn.Sequential(*model.layers), model.loss))


def test_a_step_in_which_a_teacher_runs_before_its_student() -> None:
    torch.manual_seed(1)
    model = Layers().cuda()
    teacher, student = map(compiled, model.layers)

    def steps(teacher: Function, student: Function) -> Step:
        def step() -> list[Tensor]:
            x = torch.randn(4, 8, device="cuda")
            with torch.no_grad():
                wanted = teacher(x)
            return model.gradients(mse_loss(student(x), wanted))

        return step

    check(steps(teacher, student), steps(*model.layers))


# ---- the rule, without a compiler


def ones(value: float = 1.0) -> Tensor:
    return torch.full((4,), float(value), device="cuda")


class CallsInBackward(torch.autograd.Function):
    """The identity, which calls a function in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Function) -> Tensor:
        ctx.f = f
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        ctx.f()
        return g, None


@pytest.mark.parametrize("mark", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_call_inside_of_a_backward_begins_no_step(before: int, mark: bool) -> None:
    f = graphed(lambda x: [x + 1], [ones()], is_inference=False)
    g = graphed(lambda x: [x * 2], [ones()], is_inference=False, is_backward=True)
    begin = torch.compiler.cudagraph_mark_step_begin if mark else next_step
    for i in range(before + 1):
        begin()
        (kept,) = f([ones(i)])
        step = manager().path.step
        inside: list[Tensor] = []

        def again(inside: list[Tensor] = inside, i: int = i) -> None:
            for k in range(2):
                begin()  # As each call of a compiled function does, or a wrapper that marks.
                inside.extend(f([ones(10 * i + k)]))
                # It releases the step, which outside would begin with the next call.
                inside.extend(g([ones(k)]))

        x = torch.ones(4, device="cuda", requires_grad=True)
        CallsInBackward.apply(x, again).sum().backward()
        assert manager().path.step == step
        same(kept, torch.full((4,), i + 1.0))
        for k in range(2):
            same(inside[2 * k], torch.full((4,), 10.0 * i + k + 1))
            same(inside[2 * k + 1], torch.full((4,), 2.0 * k))
        # AND the next call outside begins one
        inside.clear()
        begin()
        f([ones()])
        with pytest.raises(RuntimeError, match="overwritten"):
            kept + 1
        assert manager().path.step == step + 1
        begin()
        g([ones()])
        del kept


def test_what_inference_made_part_of_a_graph_keeps_its_step_until_a_backward() -> None:
    # GIVEN a function that a reentrant checkpoint runs, and a call of another one after it
    f, other = (graphed(lambda x: [x * 3], [ones()]) for _ in range(2))
    for i in in_steps(range(5)):
        x = torch.full((4,), float(i), device="cuda", requires_grad=True)
        with torch.no_grad():
            (y,) = f([x.detach().clone()])
        # WHEN it is part of a graph of autograd, which is pending
        z = y.mul_(x)
        next_step()
        other([ones()])
        # THEN it has its value
        same(z, torch.full((4,), 3.0 * i * i))
        # AND once a backward has run, it is held as any output: the next step ends it
        manager().set_to_running_backward()
        next_step()
        other([ones()])
        with pytest.raises(RuntimeError, match="overwritten"):
            z + 1
    assert sum(1 for _ in manager().nodes()) <= 4


def test_a_held_result_of_inference_does_not_keep_other_inference_waiting() -> None:
    # GIVEN results of inference that are held, and a function that takes what requires gradients,
    # called outside of any checkpoint
    latent = torch.ones(4, device="cuda", requires_grad=True)
    f = graphed(lambda x: [x + 1], [latent])
    held = []
    with torch.no_grad():
        for _ in in_steps(range(5)):
            held += f([latent])
    # THEN each call began a step
    assert manager().path.step == 5
    same(held[-1], torch.full((4,), 2.0))
    with pytest.raises(RuntimeError, match="overwritten"):
        held[-2] + 1

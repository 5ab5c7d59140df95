"""``use_in_inductor()``: whose trees Inductor takes, when, and in which thread."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.compile_fx as compile_fx
import torch._inductor.cudagraph_trees as torchs
import torch._inductor.output_code as output_code
from in_threads import run_in_threads

from memprof.cudagraph_trees.call.container import get_manager, reset_cudagraph_trees
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.explain.ledger import LedgerKind

from .support import VALUES, graphed, manager

CUDA = torch.device("cuda", 0)


def _names() -> list[Any]:
    return [
        compile_fx.cudagraphify,
        output_code.maybe_handle_backward_generation,
        torchs.get_manager,
        torchs.reset_cudagraph_trees,
    ]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = _names()
    yield
    assert _names() == before
    reset_cudagraph_trees()


def _wrap(into: list[Any]) -> Callable[[], None]:
    required = [
        p.name
        for p in inspect.signature(compile_fx.cudagraphify).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]

    def wrap() -> None:
        options: dict[str, Any] = {**dict.fromkeys(required, ()), "device_index": 0}
        into.append(compile_fx.cudagraphify(lambda args: args, (), **options))

    return wrap


def test_uses_end_in_any_order() -> None:
    before = _names()
    a, b = use_in_inductor(), use_in_inductor()
    during = _names()
    assert not set(during) & set(before)
    a.undo()
    assert _names() == during
    a.undo()  # again, which is nothing
    assert _names() == during
    b.undo()
    assert _names() == before


def test_a_thread_compiles_for_itself() -> None:
    # GIVEN a thread that compiles with ours
    ours, theirs, taken = [], [], []

    def on_wrap(model: Any, options: dict[str, Any]) -> Any:
        taken.append(options)
        return model

    with use_in_inductor(on_wrap, this_thread=True):
        # THEN what Inductor and others take from torch's trees at run time is torch's
        assert torchs.get_manager is not get_manager
        # WHEN another thread compiles at the same time, THEN it gets torch's trees
        run_in_threads(_wrap(theirs))
        assert taken == []
        _wrap(ours)()
        assert len(taken) == 1
    assert (ours[0].__module__, theirs[0].__module__) == (
        "memprof.cudagraph_trees.call.entry",
        "torch._inductor.compile_fx",
    )


@pytest.mark.simgpu
def test_a_backward_without_a_graph_finds_the_manager_when_it_runs() -> None:
    # GIVEN a backward that gets no graph, compiled while there is no manager
    backward: Any = SimpleNamespace(
        fx_kwargs={"is_backward": True}, current_callable=lambda inputs: inputs
    )
    with use_in_inductor():
        output_code.maybe_handle_backward_generation(backward, SimpleNamespace(value=CUDA))
    assert backward.current_callable([1]) == [1]
    x = torch.ones(4, device=CUDA)
    f = graphed(lambda x: [x + 1], [x], is_inference=False)
    for _ in range(2):  # the second time after a reset
        f([x])
        assert manager().path.pending_backward
        # WHEN it runs, THEN the manager that there is now knows
        backward.current_callable([1])
        assert not manager().path.pending_backward
        reset_cudagraph_trees()


@pytest.mark.simgpu
def test_torchs_mark_of_an_incomplete_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN what torch.compiler.cudagraph_mark_warmup_incomplete() calls, from torch 2.15 on
    told: list[int] = []
    monkeypatch.setattr(torchs, "mark_warmup_incomplete", lambda: told.append(1), raising=False)
    runs: list[int] = []

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        runs.append(1)
        if len(runs) <= 2:
            torchs.mark_warmup_incomplete()
        return [x + 1]

    # WHEN an operator calls it in its first two runs, and nobody is compiling
    x = torch.ones(4, device=CUDA)
    f = graphed(fn, [x])
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        f([x])
    # THEN the third is a warm-up as well
    counts = {e.kind: e.count for e in manager().entries()}
    assert counts[LedgerKind.RECORD] == 1
    warm_ups = [e.count for e in manager().entries() if e.kind is LedgerKind.WARM_UP]
    assert sum(warm_ups) == 3
    assert told == [1, 1]  # and torch's own trees hear of it, as ever


@pytest.mark.simgpu
def test_gradients_accumulate_in_leaves_that_are_no_parameters() -> None:
    # GIVEN a compiled function of an argument that wants a gradient, an adversarial input say
    weight = torch.full((4, 4), 0.5, device="cuda")
    compiled = torch.compile(lambda x: (x @ weight).square().sum(), mode="reduce-overhead")
    leaves = [torch.full((2, 4), k + 1.0, device="cuda", requires_grad=True) for k in range(3)]
    with use_in_inductor():
        for n in range(6):
            if n == 3:  # WHEN the first gradient that is kept comes from a replay
                for x in leaves:
                    x.grad = None
            for x in leaves:  # AND each call has another one, or none at first
                compiled(x if n else x * 1).backward()
    # THEN each is the sum of all of its own
    for k, x in enumerate(leaves):
        assert x.grad is not None
        if VALUES:
            assert x.grad.tolist() == [[3 * 8.0 * (k + 1)] * 4] * 2
        else:
            x.grad.cpu()

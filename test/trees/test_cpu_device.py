"""The tree manager on the CPU device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given

from memprof.cudagraph_trees.container import all_managers, get_manager, reset_cudagraph_trees
from memprof.cudagraph_trees.device.protocol import TensorSpec
from memprof.cudagraph_trees.entry import cudagraphify_impl
from memprof.cudagraph_trees.path import ExecutionState
from memprof.profiler.model import LedgerKind

from . import programs
from .cpu_device import CpuPool
from .test_model import MODEL, PROGRAM

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_managers() -> Iterator[None]:
    reset_cudagraph_trees()
    yield
    reset_cudagraph_trees()
    gc.collect()
    assert [m for m in all_managers() if m.device.device == CPU] == []


def affine(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    x, w = inputs
    inputs.clear()
    return x @ w, x + 1


@pytest.mark.parametrize("failing", [1, 2], ids=["warm-up", "recording"])
def test_a_run_that_fails_is_undone(failing: int) -> None:
    # GIVEN a function that writes to a buffer, draws random numbers, and fails once thereafter
    buffer, runs = torch.zeros(4), 0

    def noise(inputs: list[torch.Tensor]) -> tuple[torch.Tensor]:
        nonlocal runs
        runs += 1
        (b,) = inputs
        inputs.clear()
        out = b.add_(1) + torch.rand(4)
        if runs == failing:
            raise RuntimeError("out of something")
        return (out,)

    run = cudagraphify_impl(
        noise,
        [buffer],
        (0,),
        device_index=CPU,
        is_backward=False,
        is_inference=True,
        mutated_input_idxs=(0,),
    )
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(3)
    for i in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        # THEN each call counts once
        assert torch.equal(run([buffer])[0], i + 1 + torch.rand(4, generator=generator))
        assert torch.equal(buffer, torch.full((4,), i + 1.0))
    assert runs == 5


def test_outputs_are_fresh_for_ever() -> None:
    w = torch.randn(4, 4)
    run = cudagraphify_impl(
        affine, [torch.zeros(4, 4), w], [1], device_index=CPU, is_backward=False, is_inference=True
    )
    held = []
    for i in range(10):
        x = torch.full((4, 4), float(i))
        held.append((x, run([x, w])))
        torch.compiler.cudagraph_mark_step_begin()
    # THEN no step overwrote what an earlier one returned
    for x, (a, b) in held:
        assert torch.equal(a, x @ w)
        assert torch.equal(b, x + 1)
    manager = get_manager(CPU)
    assert manager is not None
    assert manager.path.state is ExecutionState.EXECUTION
    kinds = [e.kind for e in manager.entries()]
    assert set(kinds) == {LedgerKind.WARM_UP, LedgerKind.RECORD, LedgerKind.REPLAY}
    # AND the manager holds none of them
    dead = [weakref.ref(a) for _, (a, b) in held]
    del held, a, b
    gc.collect()
    assert [r() for r in dead] == [None] * 10


def test_a_moved_static_input_needs_no_new_recording() -> None:
    run = cudagraphify_impl(
        affine,
        [torch.zeros(4, 4), torch.eye(4)],
        [1],
        device_index=CPU,
        is_backward=False,
        is_inference=True,
    )
    for i in range(8):
        w = torch.eye(4) * i
        assert torch.equal(run([torch.ones(4, 4), w])[0], torch.ones(4, 4) @ w)
    manager = get_manager(CPU)
    assert manager is not None
    assert sum(len(nodes) for nodes in manager.tree.roots.values()) == 1


@pytest.mark.usefixtures("quick_collections")
@MODEL
@given(program=PROGRAM)
def test_random_programs(program: programs.Program) -> None:
    programs.run(program, "cpu", values=True)


def test_the_pool() -> None:
    pool = CpuPool(3 << 20)
    assert pool.reserved_bytes() == 3 << 20
    assert [(s.nbytes, [b.live for b in s.blocks]) for s in pool.segments()] == [(3 << 20, [False])]
    t = torch.arange(12.0).view(3, 4)[1:, ::2]
    copy = pool.tensor_at(TensorSpec.of(t))
    assert torch.equal(copy, t)
    assert copy.data_ptr() == t.data_ptr()
    # WHEN it is released, THEN it keeps nothing
    pool.release()
    assert pool.reserved_bytes() == 0
    pool.release()

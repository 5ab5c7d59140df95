"""Calls on a nearly full device: each is made once, and a job with room keeps its graphs."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees.capture import recovery
from memprof.cudagraph_trees.container import reset_cudagraph_trees
from memprof.cudagraph_trees.device.cuda import CudaDevice
from memprof.cudagraph_trees.errors import ran_out_of_memory
from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import LedgerKind
from memprof.simulated_cuda import control

from .room import MIB, leave, one, reasons, scratch, with_scratch
from .support import graphed, manager, next_step, pool_segments, same

pytestmark = [pytest.mark.simgpu, pytest.mark.usefixtures("whole_device")]


def collect() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def capture_fails() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise torch.OutOfMemoryError("in a capture")


@pytest.fixture
def nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 8)


def cache_writer(cache: Tensor, **options: object) -> Callable[[list[Tensor]], list[Tensor]]:
    """Adds its second argument to the cache, and returns that."""

    def write(cache: Tensor, x: Tensor) -> list[Tensor]:
        cache.add_(x)
        return [cache + 0]

    options = {"static": (0,), "mutated_input_idxs": (0,), **options}
    return graphed(write, [cache, one()], **options)  # type: ignore[arg-type]


# ---- what is warmed up in the general pool


@pytest.mark.usefixtures("nothing_is_copied")
def test_graphs_or_errors_with_what_writes_too_much_to_be_copied() -> None:
    # GIVEN graphs or errors
    with torch._inductor.config.patch("triton.cudagraph_or_error", True):
        cache = torch.zeros(4, device="cuda")
        f = cache_writer(cache)
        for i in range(3):
            next_step()
            # WHEN it is warmed up in the general pool THEN that is no call without a graph
            (y,) = f([cache, one()])
            same(y, one(i + 1.0))
            del y
    assert len(list(manager().nodes())) == 1


@pytest.mark.usefixtures("nothing_is_copied")
def test_where_there_is_room_what_is_warmed_up_apart_costs_the_others_nothing() -> None:
    # GIVEN graphs of several sizes that write to a cache
    cache = torch.zeros(4, device="cuda")
    first = graphed(lambda x: [x + 1], [one()])
    for _ in range(3):
        next_step()
        first([one()])
    writers = []
    for n in range(3):
        # WHEN one after the other is warmed up and recorded
        writers.append(cache_writer(cache))
        for _ in range(3):
            next_step()
            writers[-1]([cache, one()])
        # THEN none of the others was dropped
        assert len(list(manager().nodes())) == n + 2
    assert reasons(LedgerKind.EVICTION) == []


@pytest.mark.usefixtures("nothing_is_copied")
def test_a_random_state_comes_to_the_host_before_the_pool_goes() -> None:
    # GIVEN a forward that is replayed, whose random state is on the device then
    def state() -> Tensor:
        where = "cuda" if torch.cuda.is_current_stream_capturing() else "cpu"
        return torch.full((), 7, dtype=torch.int64, device=where)

    f = graphed(lambda x: [x * 2, state()], [one()], is_inference=False)
    for _ in range(3):
        next_step()
        f([one()])
        manager().set_to_running_backward()
    # WHEN a backward that accumulates comes for the first time, on a device that is nearly full
    total = torch.zeros(4, device="cuda")
    seen = []

    def backward(total: Tensor, seed: Tensor, g: Tensor) -> list[Tensor]:
        seen.append(seed.device.type)
        total.add_(g)
        return []

    b = graphed(
        backward,
        [total, torch.zeros((), dtype=torch.int64), one()],
        static=(0,),
        mutated_input_idxs=(0,),
    )
    collect()
    leave(0)
    next_step()
    saved = f([one(3)])
    b([total, saved.pop(), saved.pop()])
    # THEN it reads the state where code that runs looks for it
    assert seen == ["cpu"]
    same(total, one(6.0))


def test_graphs_or_errors_where_memory_runs_out() -> None:
    options = TreeOptions({"cudagraph_or_error": True})
    f = graphed(functools.partial(with_scratch, 64), [one()], torch_options=options)
    x = one()
    leave(16 * MIB)
    # GIVEN no memory THEN the error is the program's
    with pytest.raises(torch.OutOfMemoryError):
        f([x])
    # and once there is some it is recorded
    torch.cuda.set_per_process_memory_fraction(1.0)
    for i in range(3):
        next_step()
        same(f([one(i)])[0], one(i + 1.0))
    assert len(list(manager().nodes())) == 1


# ---- calls without a graph


@pytest.mark.parametrize("part", [False, True])
def test_what_a_call_has_overwritten_is_not_read_when_it_is_made_again(part: bool) -> None:
    # GIVEN a function without a graph that overwrites what nobody else holds, as a graph's
    # partition may, and that does not fit beside the pool
    def overwriting(x: Tensor) -> list[Tensor]:
        capture_fails()
        x.mul_(2)
        held = scratch(96)
        return [x + held.numel() * 0]

    before = graphed(functools.partial(with_scratch, 32), [one()])
    f = graphed(overwriting, [one()])
    collect()
    leave(112 * MIB)
    for i in range(8):
        next_step()
        x = before([one(i)])
        y = f(x if part else [x.pop().clone()])
        # THEN it has overwritten it once
        same(y[0], one(2.0 * (i + 1)))
        del x, y
    assert "does not fit beside a pool" in manager().owner.no_room


def test_a_backward_that_overwrites_what_was_saved_for_it_is_not_made_twice() -> None:
    # GIVEN a forward with a graph, and a backward without one that does not fit beside the pool
    def backward(saved: Tensor) -> list[Tensor]:
        capture_fails()
        saved.mul_(2)
        held = scratch(96)
        return [saved + held.numel() * 0]

    f = graphed(functools.partial(with_scratch, 32), [one()], is_inference=False)
    b = graphed(backward, [one()], static=(0,), is_backward=True)
    collect()
    leave(112 * MIB)
    for i in range(8):
        next_step()
        (gradient,) = b(f([one(i)]))
        same(gradient, one(2.0 * (i + 1)))
        del gradient


@pytest.mark.parametrize("backward", [False, True])
def test_what_was_short_of_memory_once_takes_the_pool_from_nobody_who_has_room(
    backward: bool,
) -> None:
    # GIVEN a function with a graph, and one that was given up for want of memory
    small = graphed(functools.partial(with_scratch, 32), [one()])
    buffer = torch.zeros(4, device="cuda")

    def step(buffer: Tensor, x: Tensor) -> list[Tensor]:
        capture_fails()
        held = scratch(48)
        return [(x if backward else x + buffer.add_(1)) + held.numel() * 0]

    which = () if backward else (0,)
    g = graphed(step, [buffer, one()], static=(0,), mutated_input_idxs=which, is_backward=backward)
    collect()
    leave(256 * MIB)
    for i in range(12):
        # WHEN both are called in turn on a device with room for both
        next_step()
        (y,) = small([one(i)])
        same(y, one(i + 1.0))
        del y
        next_step()
        (y,) = g([buffer, one()])
        same(y, one(1.0 if backward else i + 2.0))
        del y
    # THEN the first one has its graph
    assert manager().owner.no_room == ""
    assert len(list(manager().nodes())) == 1


def test_the_caches_are_not_given_back_at_each_call() -> None:
    # GIVEN nothing but a function that was given up for want of memory
    buffer = torch.zeros(4, device="cuda")

    def step(buffer: Tensor) -> list[Tensor]:
        capture_fails()
        held = scratch(48)
        return [buffer.add_(1) + held.numel() * 0]

    f = graphed(step, [buffer], static=(0,), mutated_input_idxs=(0,))
    for i in range(10):
        if i == 6:
            before = control.calls("cudaMalloc")
        next_step()
        (y,) = f([buffer])
        same(y, one(i + 1.0))
        del y
    # THEN it runs out of what is cached
    assert control.calls("cudaMalloc") == before


def test_a_function_that_was_recorded_after_all_is_not_short_of_memory() -> None:
    buffer = torch.zeros(4, device="cuda")

    def step(buffer: Tensor) -> list[Tensor]:
        held = scratch(64)
        return [buffer.add_(1) + held.numel() * 0]

    f = graphed(step, [buffer], static=(0,), mutated_input_idxs=(0,))
    collect()
    leave(32 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        f([buffer])
    (state,) = (f.state for f in manager().functions)
    assert state.short_of_memory
    torch.cuda.set_per_process_memory_fraction(1.0)
    buffer.zero_()
    for i in range(3):
        next_step()
        same(f([buffer])[0], one(i + 1.0))
    assert not state.short_of_memory
    assert len(list(manager().nodes())) == 1


def test_calls_that_fit_nowhere_do_not_count() -> None:
    # GIVEN a graph, and a program that looks for the largest batch that fits
    small = graphed(functools.partial(with_scratch, 32), [one()])
    collect()
    leave(64 * MIB)
    for i in range(8):
        next_step()
        small([one(i)])
        if i % 2:
            too_large = graphed(functools.partial(with_scratch, 128), [one()])
            for _ in range(2):
                next_step()
                with pytest.raises(torch.OutOfMemoryError):
                    too_large([one()])
    for i in range(4):
        next_step()
        same(small([one(i)])[0], one(i + 1.0))
    # THEN what fits has its graph in the end
    assert manager().owner.no_room == ""
    assert len(list(manager().nodes())) == 1


def test_memory_that_runs_out_in_a_capture_is_known_behind_the_end_of_the_capture() -> None:
    ends = RuntimeError("operation failed due to a previous error during capture")
    ends.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert ran_out_of_memory(ends)
    assert not ran_out_of_memory(RuntimeError("mine"))


# ---- room for the optimizer


class Training:
    """Steps of ``parts`` forwards and backwards with a gradient of 16 MiB each; the optimizer
    makes its state in the first one."""

    def __init__(self, parts: int = 1) -> None:
        weights = [torch.ones(4 * MIB, device="cuda") for _ in range(parts)]

        def backward(saved: Tensor) -> list[Tensor]:
            held = scratch(512)
            return [torch.where(saved != saved, saved, 1.0) if held.numel() else saved]

        def pair(w: Tensor) -> tuple[Tensor, Callable[..., Any], Callable[..., Any]]:
            f = graphed(lambda w: [w * 2], [w], static=(0,), is_inference=False)
            return w, f, graphed(backward, [w], static=(0,), is_backward=True)

        self.parts = [pair(w) for w in weights]
        self.state: list[Tensor] = []

    def gradients(self) -> list[Tensor]:
        next_step()
        saved = [f([w]) for w, f, _ in self.parts]
        return [b(saved.pop())[0] for _, _, b in reversed(self.parts)]

    def step(self) -> None:
        gradients = self.gradients()
        if not self.state:
            self.state = [torch.zeros_like(g) for g in gradients for _ in "mv"]
        held = scratch(100)
        for i, g in enumerate(gradients):
            same(g[:4], one())
            self.state[2 * i] += g
        del held


def pool_of_training(parts: int = 1) -> int:
    """Bytes of its pool."""
    training = Training(parts)
    training.gradients()
    pool = sum(s["total_size"] for s in pool_segments())
    reset_cudagraph_trees()
    collect()
    return pool


def test_the_gradients_of_all_parts_of_a_step_make_state() -> None:
    pool = pool_of_training(3)
    training = Training(3)
    collect()
    # Beside the pool fits the state of all, and no update; torch 2.13 has one small segment more.
    leave(pool + 108 * MIB)
    # THEN there is memory for both in the first step
    for _ in range(4):
        training.step()
    same(training.state[0][:4], one(4.0))


def test_whether_the_pool_fits_is_asked_once() -> None:
    # GIVEN a step that has its graphs on a device that they fill
    pool = pool_of_training()
    training = Training()
    collect()
    leave(pool + 44 * MIB)
    training.gradients()
    assert manager().owner.resting
    for _ in range(3):
        training.gradients()
    assert len(list(manager().nodes())) == 2
    collect()
    leave(8 * MIB)
    # WHEN another function comes, which the pool has memory for
    f = graphed(functools.partial(with_scratch, 32), [one()])
    for i in range(4):
        next_step()
        same(f([one(i)])[0], one(i + 1.0))
    # THEN it has a graph
    assert manager().owner.no_room == ""
    assert len(list(manager().nodes())) == 3


def test_another_batch_is_not_measured_by_what_the_first_one_needs() -> None:
    # GIVEN a step after which the pool was given back, and that is not made again
    pool = pool_of_training()
    training = Training()
    collect()
    leave(pool + 16 * MIB)
    training.gradients()
    assert manager().owner.resting
    # WHEN a smaller one is
    collect()
    leave(48 * MIB)
    f = graphed(functools.partial(with_scratch, 32), [one()])
    for i in range(4):
        next_step()
        same(f([one(i)])[0], one(i + 1.0))
    # THEN it has a graph
    assert len(list(manager().nodes())) == 1


@pytest.mark.parametrize("goes", [False, True])
def test_when_the_function_without_room_has_gone_others_have_graphs(goes: bool) -> None:
    # GIVEN a step for whose graphs there is no room
    pool = pool_of_training()
    training = Training()
    collect()
    leave(pool + 40 * MIB)
    for _ in range(2):
        training.gradients()
        state = [scratch(28)]
    assert "the pool would need" in manager().owner.no_room
    f = graphed(functools.partial(with_scratch, 32), [one()])
    f([one()])
    if goes:
        # WHEN it goes
        del training
    del state
    collect()
    for i in range(5):
        next_step()
        same(f([one(i)])[0], one(i + 1.0))
    # THEN others have graphs
    assert len(list(manager().nodes())) == goes


def test_where_there_is_no_pool_to_give_back_no_call_empties_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a backward that runs without a graph for want of memory, which it still lacks
    f = graphed(lambda x: [x + 1], [one()], is_backward=True)
    f([one()])
    (function,) = manager().functions
    manager().owner.give_back("a test")
    state = function.state
    state.failures, state.short_of_memory, state.needs = 2, True, 1 << 60
    next_step()
    f([one()])  # the pool has rested
    emptied: list[object] = []
    monkeypatch.setattr(CudaDevice, "empty_cache", lambda self: emptied.append(self) or 0)
    # WHEN it is called, and the pool has nothing
    for _ in range(3):
        next_step()
        same(f([one()]), [one() + 1])
    # THEN nothing waits for the device
    assert emptied == []

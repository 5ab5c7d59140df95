"""On a device that is nearly full a job runs wherever it would run without graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees.explain.ledger import graphs_so_far
from memprof.cudagraph_trees.record import recovery
from memprof.cudagraph_trees.replay.errors import ran_out_of_memory
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import LedgerKind
from memprof.profiler.support.counter import Counter

from .support import collect, graphed, in_steps, manager, pool_segments, same

pytestmark = [pytest.mark.simgpu, pytest.mark.usefixtures("whole_device")]

MIB = 1 << 20


def leave(nbytes: int) -> None:
    """Allow the process to take so many bytes more from the device."""
    collect()
    total = torch.cuda.get_device_properties(0).total_memory
    allowed = torch.cuda.memory_reserved() + nbytes
    torch.cuda.set_per_process_memory_fraction((allowed + 0.5) / total)


def scratch(mib: int) -> Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def one(value: float = 1.0) -> Tensor:
    return torch.full((4,), float(value), device="cuda")


def with_scratch(mib: int, x: Tensor) -> list[Tensor]:
    """Returns ``x + 1``, with scratch memory."""
    held = scratch(mib)
    return [x + 1.0 if held.numel() else x]


def reasons(kind: LedgerKind) -> list[str]:
    return [e.reason for e in manager().entries() if e.kind is kind]


def run(f: Callable[[list[Tensor]], list[Tensor]], steps: int) -> None:
    """Call ``x + 1`` in so many steps."""
    for i in in_steps(range(steps)):
        same(f([one(i)])[0], one(i + 1.0))


@pytest.mark.parametrize("or_error", [False, True])
def test_memory_of_the_general_pool_goes_to_a_graph_that_needs_it(or_error: bool) -> None:
    # GIVEN a general pool with memory that nobody uses, and a device without any more
    first = graphed(lambda x: [-x], [one()])
    first([one()])
    options = TreeOptions({"cudagraph_or_error": or_error})
    f = graphed(functools.partial(with_scratch, 64), [one()], torch_options=options)
    leave(88 * MIB)
    unused = scratch(80)
    del unused
    fallen_back = Counter.number_in(graphs_so_far()[2])
    run(f, 4)
    # THEN the pool has got it: from torch 2.13 on the allocator looks there itself
    assert manager().path.state is ExecutionState.EXECUTION
    assert manager().path.step == 5
    failures = reasons(LedgerKind.TREE_FAILURE)
    assert all("once more" in failure for failure in failures)
    assert len(failures) == (torch.__version__ < "2.13")
    # AND no call ran without a graph
    assert Counter.number_in(graphs_so_far()[2]) == fallen_back


@pytest.mark.parametrize("or_error", [False, True])
def test_what_writes_too_much_to_be_copied_is_warmed_up_in_the_general_pool(
    or_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a cache that is too large to be copied, and a function that writes to it
    monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 8)
    cache = torch.zeros(4, device="cuda")

    def step(cache: Tensor, x: Tensor) -> list[Tensor]:
        held = scratch(64)
        cache.add_(x)
        return [cache + held.numel() * 0]

    f = graphed(
        step,
        [cache, one()],
        static=(0,),
        mutated_input_idxs=(0,),
        torch_options=TreeOptions({"cudagraph_or_error": or_error}),
    )
    # The scratch memory fits once.
    leave(72 * MIB)
    for i in in_steps(range(4)):
        # THEN nothing was added twice
        same(f([cache, one()])[0], one(i + 1.0))
        if i == 0:
            assert not any(s["allocated_size"] for s in pool_segments())
    assert manager().path.state is ExecutionState.EXECUTION
    (warm_up,) = reasons(LedgerKind.WARM_UP)
    assert warm_up == "in the general pool: it writes to 16 bytes of its inputs"


@pytest.mark.parametrize("in_capture", [False, True])
def test_what_does_not_fit_beside_a_pool_ends_all_graphs(in_capture: bool) -> None:
    # GIVEN a function with a graph, and a larger one that fits the device alone
    small = graphed(functools.partial(with_scratch, 32), [one()])
    run(small, 3)

    def larger(x: Tensor) -> list[Tensor]:
        if in_capture and not torch.cuda.is_current_stream_capturing():
            return [x + 1.0]
        return with_scratch(96, x)

    large = graphed(larger, [one()])
    leave(64 * MIB if in_capture else 72 * MIB)
    for _ in range(3):
        # WHEN both are called in turn THEN both have their values
        run(large, 1)
        run(small, 1)
    # and nothing is recorded any more: the pool's memory is the program's
    assert "large" not in manager().owner.stopped
    assert "no memory for that of inference function 1" in manager().owner.stopped
    assert list(manager().nodes()) == []
    assert pool_segments() == []
    once_more, failed = reasons(LedgerKind.TREE_FAILURE)
    assert "once more" in once_more
    assert failed.startswith("recording" if in_capture else "warm-up")
    assert manager().owner.stopped in reasons(LedgerKind.SKIP)


def test_a_call_that_fits_nowhere_changes_nothing() -> None:
    # GIVEN a graph, and a program that looks for the largest batch that fits
    small = graphed(functools.partial(with_scratch, 32), [one()])
    too_large = graphed(functools.partial(with_scratch, 512), [one()])
    run(small, 3)
    leave(128 * MIB)
    for _ in in_steps(range(3)):
        with pytest.raises(torch.OutOfMemoryError):
            too_large([one()])
    # THEN what fits has its graph in the end
    run(small, 4)
    assert len(list(manager().nodes())) == 1
    # AND so has the other one once there is memory
    torch.cuda.set_per_process_memory_fraction(1.0)
    run(too_large, 3)
    assert len(list(manager().nodes())) == 2


def test_memory_that_runs_out_in_a_capture_is_known_behind_the_end_of_the_capture() -> None:
    ends = RuntimeError("operation failed due to a previous error during capture")
    ends.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    assert ran_out_of_memory(ends)
    assert not ran_out_of_memory(RuntimeError("mine"))


@pytest.mark.parametrize("fits", [False, True])
def test_there_is_room_for_what_the_first_step_of_an_optimizer_makes(fits: bool) -> None:
    # GIVEN a step whose pool and an optimizer's state fit the device or not
    parameters = torch.ones(8 * MIB, device="cuda")  # 32 MiB

    def backward(saved: Tensor) -> list[Tensor]:
        held = scratch(64)
        return [torch.where(saved != saved, saved, 1.0) if held.numel() else saved]

    f = graphed(lambda w: [w * 2], [parameters], static=(0,), is_inference=False)
    b = graphed(backward, [parameters], static=(0,), is_inference=False, is_backward=True)
    # The pool takes 148: what is saved, scratch and a gradient; and 3 % more when it is
    # recorded. The state takes 64, an update 48.
    leave((290 if fits else 218) * MIB)
    state: list[Tensor] = []
    for _ in in_steps(range(5)):
        saved = f([parameters])
        (gradient,) = b(saved)
        same(gradient[:4], one())
        if not state:
            # WHEN the optimizer makes its state THEN there is memory for it
            state += [torch.zeros_like(parameters) for _ in range(2)]
        held = scratch(48)
        state[0] += gradient
        del held
        del gradient, saved
    same(state[0][:4], one(5.0))
    # and later there are graphs if they fit as well
    assert bool(list(manager().nodes())) is fits
    assert bool(manager().owner.stopped) is not fits

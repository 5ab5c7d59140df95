"""A failed warm-up is made again if its inputs can be had; otherwise the error says why."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.call.entry import cudagraphify_impl
from memprof.cudagraph_trees.record import recovery
from memprof.cudagraph_trees.replay.spec import CompilationMode, FunctionSpec
from memprof.cudagraph_trees.steps.step_end import ParameterRefs
from memprof.profiler.model import GraphDescription, LedgerKind
from memprof.simulated_cuda import control

from .support import graphed, in_steps, live_blocks, manager, same

pytestmark = pytest.mark.simgpu

N = 1 << 10


def full(value: float) -> torch.Tensor:
    return torch.full((N,), float(value), device="cuda")


def fails_once(
    inputs: Sequence[torch.Tensor], static: Sequence[int] = (), mutated: Sequence[int] = ()
) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Sums its inputs, having added 1 to those in ``mutated``, having let go of all of them.

    The first time it overwrites the memory that they had, if it can, and fails.
    """
    failed = []

    def model(args: list[torch.Tensor]) -> list[torch.Tensor]:
        for i in mutated:
            args[i].add_(1)
        out = args[0] + 0
        while len(args) > 1:
            out += args.pop()
        args.clear()
        if not failed:
            failed.append(1)
            scratch = [torch.full((N,), -7.0, device="cuda") for _ in range(4)]
            raise ValueError(f"mine, {len(scratch)}")
        return [out]

    return cudagraphify_impl(  # type: ignore[return-value]
        model,
        list(inputs),
        tuple(static),
        device_index=0,
        is_inference=True,
        is_backward=False,
        mutated_input_idxs=tuple(mutated),
    )


def failures() -> list[str]:
    return [e.reason for e in manager().entries() if e.kind is LedgerKind.TREE_FAILURE]


def test_inputs_that_died_in_the_warm_up_are_had_again() -> None:
    # GIVEN a function that gets what an earlier one made, two of them over one storage
    def halves(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.cat([x, x * 2])
        return [y[:N], y[N:], x - 1]

    f = graphed(halves, [full(1)])
    g = fails_once([full(0)] * 3)
    for i in in_steps(range(5)):
        made = f([full(i)])
        # WHEN its warm-up fails, having let go of them
        (y,) = g(made)
        # THEN the call has its value, as every later one
        same(y, torch.full((N,), 4.0 * i - 1))
        del y, made
    assert [r.partition(":")[0] for r in failures()] == ["warm-up failed"]
    assert manager().path.node in [n for n in manager().nodes() if n.parent is not None]
    gc.collect()
    assert live_blocks() == 0


@pytest.mark.parametrize("written", [False, True])
def test_inputs_that_are_too_large_to_be_kept(
    written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 2 * N)
    f = graphed(lambda x: [x + 1], [full(1)])
    buffer = full(0)
    inputs = [buffer, full(0)] if written else [full(0)]
    which = [0] if written else []
    g = fails_once(inputs, static=which, mutated=which)
    for i in in_steps(range(6)):
        made = [buffer, *f([full(i)])] if written else f([full(i)])
        if i == 0:
            # WHEN the warm-up fails THEN the error is the program's, and says what memprof did
            with pytest.raises(ValueError, match="mine, 4") as e:
                g(made)
            if written:
                # It was made in the general pool: there was nothing that memprof could have done.
                assert failures() == []
                assert not hasattr(e.value, "__notes__")
            else:
                (note,) = e.value.__notes__
                assert note.startswith("memprof: the call cannot be made again without a graph")
                assert f"{4 * N} bytes" in note
                assert "too large" in note
                assert "What to do: if memory ran out, make the batch smaller" in note
                assert note in f"memprof: {failures()[0].partition('; ')[2]}"
            del e, made
            continue
        # and later steps are right
        (y,) = g(made)
        same(y, torch.full((N,), 2.0 * i + 2 if written else i + 1.0))
        del y, made
    assert manager().path.node in [n for n in manager().nodes() if n.parent is not None]


@pytest.mark.parametrize("where", ["warm-up", "without a graph"])
def test_an_error_that_reaches_the_user_does_not_hold_itself(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a function for which there is no memory, and inputs that cannot be had again; or
    # that has none without a graph, either
    if where == "warm-up":
        monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 0)
    calls = 0

    class Mine(torch.OutOfMemoryError):
        pass

    def model(args: list[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal calls
        calls += 1
        args.clear()
        raise Mine("no memory")

    f = cudagraphify_impl(model, [full(0)], device_index=0, is_inference=True, is_backward=False)
    calls = 0
    # WHEN the program hears of it, and no garbage collector comes
    gc.disable()
    try:
        try:
            f([full(0)])
        except Mine as e:
            error = weakref.ref(e)
        # THEN the error has gone, and with it what its frames held: the copies of inputs, say
        assert error() is None
    finally:
        gc.enable()
    assert (calls == 1) == (where == "warm-up")


def test_what_is_kept_to_call_again_takes_no_device_memory() -> None:
    # GIVEN a function that lets its inputs go and then takes as much memory as they had
    nbytes = 16 << 20

    def inputs() -> list[torch.Tensor]:
        return [torch.empty(nbytes // 4, dtype=torch.uint8, device="cuda") for _ in range(4)]

    def model(args: list[torch.Tensor]) -> list[torch.Tensor]:
        args.clear()
        return [torch.zeros(nbytes, dtype=torch.uint8, device="cuda")]

    f = cudagraphify_impl(model, inputs(), device_index=0, is_inference=True, is_backward=False)
    peaks = []
    for _ in in_steps(range(3)):
        before = torch.cuda.memory_allocated()
        arguments = inputs()
        torch.cuda.reset_peak_memory_stats()
        f(arguments)
        peaks.append((torch.cuda.max_memory_allocated() - before) / nbytes)
    # THEN the warm-up takes what the call itself takes, and the recording copies of the inputs
    # beside what they are copied from, or beside the result
    warm_up, recording, _ = peaks
    assert warm_up < 1.1
    assert recording < 2.1


@pytest.mark.skipif(compat.can_swap_storage(), reason="this torch can swap storages")
def test_parameters_are_remembered_for_as_long_as_they_live() -> None:
    leaves = ParameterRefs()
    parameters = [torch.nn.Parameter(full(i)) for i in range(3)]
    function = FunctionSpec(
        number=0,
        label="f",
        caller="f",
        model=list,
        mode=CompilationMode.FORWARD,
        static=(0, 1, 2),
        description=GraphDescription(),
    )
    for _ in range(2):
        leaves.remember(function, list(parameters))
    assert {id(p) for p in leaves} == {id(p) for p in parameters}
    del parameters[1:]
    gc.collect()
    assert [id(p) for p in leaves] == [id(p) for p in parameters]


def test_a_launch_that_fails_reaches_the_user_and_later_calls_are_right() -> None:
    if not control.simulated():
        pytest.skip("no simulated CUDA device")
    f = graphed(lambda x: [x + 1], [full(0)])
    g = graphed(lambda x: [x * 2], [full(0)])
    for i in in_steps(range(6)):
        made = f([full(i)])
        if i == 3:
            control.fail("cudaGraphLaunch", 0, 999)
            with pytest.raises(RuntimeError, match="unknown error"):
                g(made)
            del made
            continue
        (y,) = g(made)
        same(y, torch.full((N,), 2.0 * (i + 1)))
        del y, made
    assert manager().path.node in [n for n in manager().nodes() if n.parent is not None]

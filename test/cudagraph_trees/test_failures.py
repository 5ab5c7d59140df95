"""What fails in a warm-up, a recording or a replay: right answers, nothing leaked. Calls of the
driver fail in turn in ``test_failures_of_each_call.py``."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch

from memprof.cudagraph_trees.call.container import reset_cudagraph_trees
from memprof.cudagraph_trees.record.recovery import InputBackup
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind

from .support import (
    collect,
    frozen,
    graphed,
    in_steps,
    live_blocks,
    manager,
    next_step,
    roots,
    same,
)

pytestmark = pytest.mark.simgpu


def test_an_operation_that_cannot_be_captured() -> None:
    # GIVEN a function that waits for the device, which a capture forbids
    runs = []

    def foo(x: torch.Tensor) -> list[torch.Tensor]:
        runs.append(1)
        torch.cuda.synchronize()
        return [x + 1]

    f = graphed(foo, [torch.ones(4, device="cuda")])
    for i in in_steps(range(6)):
        (y,) = f([torch.full((4,), float(i), device="cuda")])
        same(y, torch.full((4,), i + 1.0))
        del y
    # THEN it ran without a graph each time, and after two attempts no more are made
    (failure,) = (e for e in manager().entries() if e.kind is LedgerKind.TREE_FAILURE)
    assert failure.count == 2
    # AND the ledger has the first error, not what it did to the capture, and who made it
    assert failure.reason.startswith(
        "recording failed: AcceleratorError: CUDA error: operation not"
    )
    assert "\n" not in failure.reason
    assert failure.reason.endswith("torch.cuda.synchronize())")
    assert __file__ in failure.reason
    skips = [e for e in manager().entries() if e.kind is LedgerKind.SKIP]
    assert sum(e.count for e in skips) == 3
    assert roots() == []


def test_a_failure_below_a_replayed_node_leaves_its_outputs_alone() -> None:
    f = graphed(lambda x: (x + 1, x + 2), [torch.ones(4, device="cuda")])

    def bad(x: torch.Tensor) -> list[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            y = x * 3  # a block that the failed run must not leave behind
            raise NotImplementedError(f"not while capturing, {y.shape}")
        return [x * 3]

    g = graphed(bad, [torch.ones(4, device="cuda")])
    for i in in_steps(range(6)):
        a, b = f([torch.full((4,), float(i), device="cuda")])
        (c,) = g([a])
        same(a, torch.full((4,), i + 1.0))
        same(b, torch.full((4,), i + 2.0))
        same(c, torch.full((4,), 3.0 * (i + 1)))
        del a, b, c
    assert live_blocks() == 0


@pytest.mark.parametrize("held", [False, True])
def test_an_input_that_is_returned_after_a_failed_recording(held: bool) -> None:
    # GIVEN a function that saves its input, as forwards do, and cannot be recorded
    def saves(x: torch.Tensor) -> list[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            raise NotImplementedError
        return [x * 3, x]

    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    g = graphed(saves, [torch.ones(4, device="cuda")])
    h = graphed(lambda x: [x - 7], [torch.ones(4, device="cuda")])
    for i in in_steps(range(6)):
        (a,) = f([torch.full((4,), float(i), device="cuda")])
        # WHEN nobody else holds it, or somebody does
        args = [a]
        if not held:
            del a
        b, saved = g(args)
        # THEN nothing else is put where it lies
        (c,) = h([b])
        same(saved, torch.full((4,), i + 1.0))
        same(c, torch.full((4,), 3.0 * (i + 1) - 7))
        assert saved.data_ptr() not in {b.data_ptr(), c.data_ptr()}
        if held:
            same(a, torch.full((4,), i + 1.0))


def test_a_function_none_of_whose_calls_returns() -> None:
    # GIVEN a function with a constant that raises in each of its calls, the first one included
    constant = torch.ones(4, device="cuda")
    gone = weakref.ref(constant)
    runs: list[bool] = []

    def foo(x: torch.Tensor, constant: torch.Tensor = constant) -> list[torch.Tensor]:
        runs.append(torch.cuda.current_stream() == torch.cuda.default_stream())
        raise KeyError("mine")

    other = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(2)):
        other([torch.ones(4, device="cuda")])
    f = graphed(foo, [torch.ones(4, device="cuda")], constants=(constant,))
    for _ in range(4):
        with pytest.raises(KeyError, match="mine"):
            f([torch.ones(4, device="cuda")])
    # THEN it is one function, which is warmed up no more after two failures
    assert runs == [False, True, False, True, True, True]
    assert len(manager().functions) == 2
    # WHEN nobody has it any more, THEN nothing is left of it
    del f, foo, constant
    gc.collect()
    assert gone() is None
    next_step()
    graphed(lambda x: [x + 2], [torch.ones(4, device="cuda")])([torch.ones(4, device="cuda")])
    assert 1 not in {f.number for f in manager().functions}


def test_an_interrupt_in_a_warm_up_or_a_recording() -> None:
    interrupt: list[int] = []
    captures = []

    def foo(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 3  # a block that the traceback holds
        if interrupt:
            captures.append(torch.cuda.is_current_stream_capturing())
            raise KeyboardInterrupt(interrupt.pop())
        return [y]

    f = graphed(lambda x: [x + 1, x + 2], [torch.ones(4, device="cuda")])
    g = graphed(foo, [torch.ones(4, device="cuda")])
    with frozen():
        kept = []
        for i in in_steps(range(10)):
            # GIVEN outputs of a replay
            a, b = f([torch.full((4,), float(i), device="cuda")])
            # WHEN the program is interrupted below it, and its error is kept for a while
            if i in (3, 4):
                interrupt.append(i)
                with pytest.raises(KeyboardInterrupt) as e:
                    g([a])
                kept.append(e)
            # THEN the function is warmed up and recorded all the same
            if i >= 3:
                (c,) = g([a])
                same(c, torch.full((4,), 3.0 * (i + 1)))
                del c
            same(a, torch.full((4,), i + 1.0))
            same(b, torch.full((4,), i + 2.0))
            del a, b
        assert captures == [False, True]
        assert manager().path.state is ExecutionState.EXECUTION
        collect()
        assert live_blocks() == 0


def test_a_warm_up_that_fails_before_the_function_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    f([torch.ones(4, device="cuda")])
    g = graphed(lambda x: [x + 2], [torch.ones(4, device="cuda")])

    def fails(function: object, inputs: object) -> None:
        raise RuntimeError("no stream")

    monkeypatch.setattr(manager().pool, "warm_up", fails)
    next_step()
    inputs = [torch.ones(4, device="cuda")]
    (y,) = g(inputs)
    same(y, torch.full((4,), 3.0))
    assert inputs == []


def test_a_warm_up_before_which_nothing_could_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no memory on the host for the copy of what the function writes to
    runs: list[bool] = []

    def foo(buffer: torch.Tensor) -> list[torch.Tensor]:
        runs.append(torch.cuda.is_current_stream_capturing())
        buffer.add_(1)
        return [buffer + 1]

    buffer = torch.zeros(4, device="cuda")
    f = graphed(foo, [buffer], static=(0,), mutated_input_idxs=(0,))

    def fails(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as m:
        m.setattr(InputBackup, "warm_up", fails)
        with pytest.raises(MemoryError):
            f([buffer])
    assert runs == []
    for i in in_steps(range(4)):
        (y,) = f([buffer])
        same(y, torch.full((4,), i + 2.0))
        del y
    # THEN the next call is its warm-up
    assert runs == [False, True]


def test_a_failed_warm_up_does_not_write_twice() -> None:
    # GIVEN a function that adds to a buffer and fails afterwards, the first time
    buffer = torch.zeros(4, device="cuda")
    failed = []

    def foo(b: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        b.add_(x)
        if not failed:
            failed.append(1)
            raise RuntimeError("out of something")
        return [b + 1]

    f = graphed(foo, [buffer, buffer], static=(0,), mutated_input_idxs=(0,))
    for i in in_steps(range(5)):
        (y,) = f([buffer, torch.ones(4, device="cuda")])
        same(buffer, torch.full((4,), i + 1.0))
        same(y, torch.full((4,), i + 2.0))
        del y


def test_the_call_without_a_graph_waits_for_the_kernels_of_the_failed_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a function whose warm-up launches a kernel that writes, and fails
    log: list[tuple[str, int]] = []
    current = torch.cuda.current_stream

    def foo(buffer: torch.Tensor) -> list[torch.Tensor]:
        log.append(("run", current().cuda_stream))
        buffer.add_(1)
        if len([what for what, _ in log if what == "run"]) == 1:
            raise RuntimeError("after a kernel")
        return [buffer + 1]

    buffer = torch.zeros(4, device="cuda")
    f = graphed(foo, [buffer], static=(0,), mutated_input_idxs=(0,))
    wait = torch.cuda.Stream.wait_stream

    def logged(self: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
        log.append(("wait", other.cuda_stream) if self == current() else ("other", 0))
        wait(self, other)

    monkeypatch.setattr(torch.cuda.Stream, "wait_stream", logged)
    # WHEN it is called again without a graph
    f([buffer])
    # THEN the stream of that call has waited for that of the warm-up
    first, last = (i for i, (what, _) in enumerate(log) if what == "run")
    assert log[first][1] != log[last][1] == current().cuda_stream
    assert ("wait", log[first][1]) in log[first:last]


def test_a_backward_is_not_recorded_while_its_forward_runs_without_a_graph() -> None:
    # GIVEN a forward that cannot be captured, and its backward, for which saved tensors are static
    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        torch.cuda.synchronize()
        return [x * 2]

    x = torch.zeros(4, device="cuda")
    f = graphed(forward, [x], is_inference=False, compile_id="7/0")
    g = graphed(lambda y: [y + 1], [x], (0,), is_backward=True, compile_id="7/0")
    other = graphed(lambda y: [y + 1], [x], (0,), is_backward=True, compile_id="8/0")
    kept = []
    for _ in in_steps(range(6)):
        (saved,) = f([x])
        kept.append(saved)  # so that the next one is elsewhere
        same(g([saved])[0], torch.ones(4))
    # THEN it was never recorded for tensors that do not come back
    assert [n for n in manager().nodes() if n.wrapped_function.mode.name == "BACKWARD"] == []
    reasons = {e.reason for e in manager().entries() if e.kind is LedgerKind.SKIP}
    assert "its forward ran without a graph" in reasons
    # AND another graph's backward is not concerned
    for _ in in_steps(range(3)):
        other([x])
    assert [n.wrapped_function.compile_id for n in manager().nodes()] == ["8/0"]


def test_a_size_whose_forward_cannot_be_recorded_leaves_the_other_sizes_their_backward() -> None:
    # GIVEN a forward that can be captured in all sizes but one
    def forward(x: torch.Tensor, n: int) -> list[torch.Tensor]:
        if n == 3 and torch.cuda.is_current_stream_capturing():
            raise NotImplementedError
        return [x * 2]

    x = torch.zeros(4, device="cuda")
    f = graphed(forward, [x, 5], is_inference=False, compile_id="7/0")
    g = graphed(lambda y, n: [y + 1], [x, 5], is_backward=True, compile_id="7/0")

    def run(n: int, times: int) -> None:
        for _ in in_steps(range(times)):
            (y,) = f([x, n])
            same(g([y, n])[0], torch.ones(4))

    def replays() -> list[int]:
        return [n.replays for n in manager().nodes() if n.wrapped_function.mode.name == "BACKWARD"]

    run(5, 3)
    # WHEN that size comes, and then another one again
    run(3, 4)
    run(5, 5)
    # THEN the other one's backward is replayed
    assert replays() == [6]
    # AND that of the size without a graph was never recorded
    backwards = [
        (e.tree.key, e.reason)
        for e in manager().entries()
        if e.kind is LedgerKind.SKIP and e.tree and "backward" in e.tree.function
    ]
    assert backwards == [((3,), "its forward ran without a graph")]


def test_what_frames_of_an_interrupt_hold_waits_for_no_collector() -> None:
    # GIVEN a function that is interrupted, called by somebody who has a tensor
    def interrupted(x: torch.Tensor) -> tuple[torch.Tensor]:
        raise KeyboardInterrupt

    f = graphed(interrupted, [torch.ones(4, device="cuda")])
    theirs: list[weakref.ref[torch.Tensor]] = []

    def call() -> None:
        held = torch.ones(4, device="cuda")
        theirs.append(weakref.ref(held))
        f([held + 1])

    # WHEN the interrupt is over
    gc.disable()
    try:
        for _ in range(2):
            try:
                call()
            except KeyboardInterrupt:
                pass
            else:
                pytest.fail("it was not interrupted")
        # THEN nothing is left of it
        assert [r() for r in theirs] == [None, None]
    finally:
        gc.enable()


def test_what_a_function_holds_goes_though_it_has_reset_the_trees() -> None:
    # GIVEN a function that is under way when the manager goes
    class Held:
        pass

    def resetting(x: torch.Tensor, held: Held) -> tuple[torch.Tensor]:
        assert held
        reset_cudagraph_trees()
        return (x + 1,)

    held = Held()
    theirs = weakref.ref(held)
    f = graphed(functools.partial(resetting, held=held), [torch.ones(4, device="cuda")])
    del held
    same(f([torch.ones(4, device="cuda")])[0], torch.full((4,), 2.0))
    # WHEN nobody can call it any more
    del f
    gc.collect()
    # THEN the ledger, which stays for reports, does not hold it
    assert theirs() is None

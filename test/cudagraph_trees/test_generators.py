"""Generators in functions on graph trees: what is drawn is what the same calls draw without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from in_threads import run_in_threads
from torch import Generator, Tensor

from memprof.cudagraph_trees import _torch_compat as allocator
from memprof.cudagraph_trees.device.cuda import GeneratorStates
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind

from .support import VALUES, graphed, in_steps, manager, next_step, same

pytestmark = pytest.mark.simgpu

N = 64
CUDA = torch.device("cuda", 0)
CAPTURE_INVALIDATED = 901
LAUNCH_FAILED = 719


def default() -> Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[0]


def other(seed: int) -> Generator:
    return Generator(CUDA).manual_seed(seed)


def draw(x: Tensor, generator: Generator | None) -> Tensor:
    return x + torch.rand(N, device=CUDA, generator=generator)


def draw_swapped(x: Tensor, generator: Generator, meanwhile: Callable[[], None]) -> Tensor:
    """As code does that torch compiles for what checkpointing recomputes."""
    own = default().graphsafe_get_state()
    default().graphsafe_set_state(generator)
    meanwhile()
    y = draw(x, None)
    default().graphsafe_set_state(own)
    return y


def failures() -> list[str]:
    return [e.reason for e in manager().entries() if e.kind is LedgerKind.TREE_FAILURE]


class Both:
    """Calls a function on trees and the same one without, and compares what they draw.

    Args:
        draws: is given a tensor and generators, the first of them the device's default one.
        seeds: of generators that the function gets as inputs.
    """

    def __init__(self, draws: Callable[..., Tensor], *seeds: int) -> None:
        self.draws = draws
        self.ours, self.theirs = ([other(s) for s in seeds] for _ in "ab")
        torch.manual_seed(7)
        self.default = default().get_state()
        self.host = torch.get_rng_state()
        self.x = torch.zeros(N, device=CUDA)
        self.graphed = graphed(lambda x, *g: [draws(x, *g)], [self.x, *self.ours])

    def call(self) -> Tensor:
        next_step()
        (ours,) = self.graphed([self.x, *self.ours])
        # The other one goes on from where it was.
        now = default().get_state(), torch.get_rng_state()
        default().set_state(self.default)
        torch.set_rng_state(self.host)
        theirs = self.draws(self.x, *self.theirs)
        self.default, self.host = default().get_state(), torch.get_rng_state()
        assert torch.equal(now[0], self.default), "the device's generator"
        for a, b in zip(self.ours, self.theirs, strict=True):
            assert torch.equal(a.get_state(), b.get_state()), "a generator among the inputs"
        same(ours, theirs)
        return ours.cpu()


def test_a_generator_among_the_inputs() -> None:
    both = Both(lambda x, a, b: draw(draw(draw(x, a), b), None), 1, 1)
    seen = [both.call() for _ in range(6)]
    assert failures() == []
    assert manager().path.state is ExecutionState.EXECUTION
    assert not VALUES or len({float(t.sum()) for t in seen}) == 6


def test_seeding_a_generator_repeats_its_numbers() -> None:
    both = Both(lambda x, a: draw(x, a), 1)
    seen = [both.call() for _ in range(5)]
    for g in (*both.ours, *both.theirs):
        g.manual_seed(1)
    # THEN replays draw what the warm-up and the recording drew, and what came after
    same([both.call() for _ in range(5)], seen)


def test_the_default_generator_with_the_state_of_another() -> None:
    both = Both(lambda x, a: draw(draw_swapped(x, a, lambda: None), None), 1)
    seen = [both.call() for _ in range(6)]
    assert failures() == []
    assert manager().path.state is ExecutionState.EXECUTION
    assert not VALUES or len({float(t.sum()) for t in seen}) == 6


@pytest.mark.parametrize("fails_at", [1, 2], ids=["warm-up", "recording"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_while_the_state_is_swapped(fails_at: int, error: type[BaseException]) -> None:
    # GIVEN a function that fails once while the default generator has the state of another
    armed: list[bool] = []

    def meanwhile() -> None:
        if armed:
            armed.pop()
            torch.rand(1, device="cpu")  # the host's generator moves, too
            raise error("mine")

    both = Both(lambda x, a: draw_swapped(draw(x, a), a, meanwhile), 3)
    for i in range(6):
        if i == fails_at - 1:
            armed.append(True)
            if error is KeyboardInterrupt:
                own = default().get_state(), both.ours[0].get_state(), torch.get_rng_state()
                next_step()
                with pytest.raises(KeyboardInterrupt):
                    both.graphed([both.x, *both.ours])
                now = default().get_state(), both.ours[0].get_state(), torch.get_rng_state()
                # THEN all are where they were before the call
                assert all(torch.equal(a, b) for a, b in zip(own, now, strict=True))
        # THEN the call that was made again, and all that follow, draw what they draw without
        both.call()
    assert not armed
    assert len(failures()) == (error is ValueError)
    # AND the default generator has its own state
    before = both.ours[0].get_state()
    torch.rand(1, device=CUDA)
    assert torch.equal(both.ours[0].get_state(), before)


def test_a_failed_warm_up_of_a_function_without_tensors() -> None:
    failed: list[int] = []

    def draws(host: Generator) -> list[Tensor]:
        y = torch.rand(N, device=CUDA)
        y += torch.rand(1, device="cpu", generator=host).item() + torch.rand(1, device="cpu").item()
        if not failed:
            failed.append(1)
            raise ValueError("mine")
        return [y]

    torch.manual_seed(2)
    expected = torch.rand(N, device=CUDA)
    expected += torch.rand(1, generator=Generator().manual_seed(1)).item() + torch.rand(1).item()
    torch.manual_seed(2)
    host = Generator().manual_seed(1)
    f = graphed(draws, [host])
    (y,) = f([host])
    assert len(failures()) == 1
    same(y, expected)


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("cudaStreamBeginCapture", CAPTURE_INVALIDATED),
        ("cudaStreamEndCapture", CAPTURE_INVALIDATED),
        ("cudaGraphInstantiateWithFlags", 2),
        ("cudaGraphLaunch", LAUNCH_FAILED),
    ],
)
def test_the_driver_fails_in_a_recording(api: str, error: int) -> None:
    from memprof.simulated_cuda import control as simgpu

    # GIVEN a graph of the user's that draws from the generators, too
    both = Both(lambda x, a: draw_swapped(draw(x, None), a, lambda: None), 3)
    theirs = torch.cuda.CUDAGraph()
    allocator.register_generators(theirs, both.ours)
    with torch.cuda.graph(theirs):
        out = draw(draw(both.x, None), both.ours[0])
    both.call()
    # WHEN the recording fails, for the last of which torch moves the generators before
    simgpu.fail(api, 0, error)
    both.call()
    simgpu.fail(api, 1 << 40, error)
    assert len(failures()) == 1
    # THEN nothing was drawn twice, which ``Both`` looks at, and recordings can be made
    for _ in range(4):
        both.call()
    assert manager().path.state is ExecutionState.EXECUTION
    # AND the user's graph draws from where the generators are
    expected = default().get_offset() + 4, both.ours[0].get_offset() + 4
    theirs.replay()
    assert (default().get_offset(), both.ours[0].get_offset()) == expected
    del out


def test_what_another_thread_draws_while_something_is_recorded_is_not_drawn_again() -> None:
    drawn: list[Tensor] = []

    def meanwhile(x: Tensor) -> list[Tensor]:
        if torch.cuda.is_current_stream_capturing():
            run_in_threads(lambda: drawn.append(torch.rand(4, device="cpu")))
        return [draw(x, None)]

    x = torch.zeros(N, device=CUDA)
    f = graphed(meanwhile, [x])
    for _ in in_steps(range(3)):
        f([x])
    assert failures() == []
    (first,) = drawn
    assert not torch.equal(torch.rand(4), first)


def test_states_are_put_back_into_the_generators_that_had_them() -> None:
    # GIVEN two generators, one of which gets the state of the other
    a, b = other(1), other(2)
    before = GeneratorStates(CUDA, [a, b, a, None, 3])
    torch.rand(3, device=CUDA, generator=b)
    own = default().graphsafe_get_state()
    default().graphsafe_set_state(a)
    torch.rand(3, device=CUDA)
    # WHEN they are put back
    before.restore()
    # THEN each has its own state
    for g, seed in ((a, 1), (b, 2)):
        assert (g.initial_seed(), g.get_offset()) == (seed, 0)
    default().manual_seed(5)
    assert own.initial_seed() == 5
    assert a.initial_seed() == 1

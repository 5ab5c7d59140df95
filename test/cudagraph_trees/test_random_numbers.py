"""Random numbers of compiled programs with graphs: right by arithmetic, see ``random_programs``.

The default run has every operator in one program, under each kind of checkpointing; the slow one
has the whole matrix, each operator for itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from memprof.cudagraph_trees.call.container import all_managers, reset_cudagraph_trees
from memprof.cudagraph_trees.call.inductor import use_in_inductor
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind

from .random_programs import (
    CHECKPOINTS,
    OPERATORS,
    SHAPE,
    Program,
    Step,
    same_numbers_in_all_kernels,
)
from .support import VALUES, graphed, in_steps

pytestmark = [
    pytest.mark.simgpu,
    pytest.mark.skipif(not VALUES, reason="nothing is computed"),
]

STEPS = 7
GRAPHS: dict[str, Any] = {"backend": "memprof"}
NO_GRAPHS: dict[str, Any] = {"backend": "memprof", "options": {"graphs": False}}
CAPTURE_INVALIDATED, LAUNCH_FAILED = 901, 719


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), same_numbers_in_all_kernels():
        warnings.simplefilter("ignore")
        yield


def run(compile: dict[str, Any], *args: Any, **more: Any) -> list[Step]:
    """The steps of a program that is compiled anew, from seed 0."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Program(compile, *args, **more).steps(STEPS)


def check(steps: list[Step], *, all_differ: bool = True) -> None:
    assert all(s.right for s in steps), steps
    assert not all_differ or len({s.loss for s in steps}) == len(steps), steps


def count(kind: LedgerKind) -> int:
    return sum(e.count for m in all_managers() for e in m.entries() if e.kind is kind)


def check_with_and_without(*args: Any, all_differ: bool = True, **more: Any) -> None:
    """The arithmetic, with graphs that are replayed, and the same losses without."""
    graphs = run(GRAPHS, *args, **more)
    check(graphs, all_differ=all_differ)
    assert count(LedgerKind.TREE_FAILURE) == 0
    assert count(LedgerKind.REPLAY) >= 2 * (STEPS - 3)
    assert [s.loss for s in run(NO_GRAPHS, *args, **more)] == [s.loss for s in graphs]


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_all_operators(how: str) -> None:
    check_with_and_without("all", how)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("how", CHECKPOINTS)
@pytest.mark.parametrize("operator", sorted(OPERATORS.keys() - {"all"}))
def test_each_operator(operator: str, how: str, micro_batches: int) -> None:
    check_with_and_without(operator, how, micro_batches)


@pytest.mark.parametrize("how", ["none", "non-reentrant"])
def test_accumulation(how: str) -> None:
    check_with_and_without("attention", how, 3)


@pytest.mark.parametrize("how", ["none", "non-reentrant"])
def test_a_forked_generator(how: str) -> None:
    check_with_and_without("fork_rng", how)


def test_a_seed_repeats_a_run() -> None:
    torch.manual_seed(0)
    program = Program(GRAPHS, "all", "none")
    # WHEN the first steps warm up and record, and later all are replayed
    first = program.steps(STEPS, seed=3)
    again = program.steps(STEPS, seed=3)
    assert program.steps(STEPS, seed=4)[0].loss != first[0].loss
    # THEN the numbers are the same ones
    assert again == first
    assert count(LedgerKind.RECORD) == 2
    # AND where checkpointing has generators of its own, whose seeds are drawn once,
    # from the beginning of the program
    assert run(GRAPHS, "attention", "non-reentrant") == run(GRAPHS, "attention", "non-reentrant")


@pytest.mark.parametrize("operator", ["dropout", "attention"])
@pytest.mark.parametrize("how", ["none", "non-reentrant"])
def test_functionalized_random_operators(operator: str, how: str) -> None:
    # Torch itself, and without compiling, draws the same numbers for attention in every step.
    with torch._functorch.config.patch(functionalize_rng_ops=True):
        graphs = run(GRAPHS, operator, how)
        check(graphs, all_differ=operator != "attention")
        assert [s.loss for s in run(NO_GRAPHS, operator, how)] == [s.loss for s in graphs]


def test_a_users_generator() -> None:
    # Recomputing draws from it again, in torch itself: checkpointing does not put it back.
    def draws(x: Tensor, y: Tensor, generator: Generator) -> Tensor:
        return y * torch.rand(SHAPE, device=y.device, generator=generator) * torch.rand_like(y)

    def generator() -> Generator:
        return Generator("cuda").manual_seed(5)

    ours, theirs, eager = generator(), generator(), generator()
    graphs = run(GRAPHS, draws, "none", extra=(ours,))
    check(graphs)
    without = run(NO_GRAPHS, draws, "none", extra=(theirs,))
    assert [s.loss for s in without] == [s.loss for s in graphs]
    assert ours.get_offset() == theirs.get_offset()
    for _ in range(STEPS):
        torch.rand(SHAPE, device="cuda", generator=eager)
    assert ours.get_offset() == eager.get_offset()


class Fails:
    """One program, compiled once; in each run a call of the driver fails, and only the values and
    the generators are looked at."""

    def __init__(self, operator: str, how: str) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.program = Program(GRAPHS, operator, how)
        self.moved = -1
        self.moved = self.run("cudaGraphLaunch", 1 << 40, LAUNCH_FAILED)

    def run(self, api: str, k: int, error: int) -> int:
        """Some steps, the ``k``-th call of ``api`` in which fails; how far the generator moved."""
        from memprof.simulated_cuda import control as simgpu

        reset_cudagraph_trees()
        torch.manual_seed(1)
        simgpu.fail(api, k, error)
        try:
            steps = [self.program.step() for _ in range(STEPS)]
        finally:
            simgpu.fail(api, 1 << 40, error)
        check(steps)
        moved = torch.cuda.default_generators[0].get_offset()
        assert self.moved in (-1, moved), "numbers were drawn twice, or not at all"
        (manager,) = all_managers()
        assert manager.path.state is ExecutionState.EXECUTION
        return moved

    def calls(self, api: str) -> int:
        """How often a step that is warmed up makes the call."""
        from memprof.simulated_cuda import control as simgpu

        reset_cudagraph_trees()
        before = simgpu.calls(api)
        self.program.step()
        return simgpu.calls(api) - before

    def __call__(self, api: str, k: int, error: int) -> None:
        self.run(api, k, error)
        assert count(LedgerKind.TREE_FAILURE) >= 1, (api, k)


@pytest.mark.parametrize(
    ("operator", "how"),
    [
        ("attention", "non-reentrant"),
        *(
            pytest.param(o, h, marks=pytest.mark.slow)
            for o in ("all", "attention", "dropout")
            for h in ("none", "selective", "outer-reentrant")
        ),
    ],
)
def test_warm_ups_and_recordings_that_fail(operator: str, how: str) -> None:
    fails = Fails(operator, how)
    # A kernel of attention fails when the default generator has the state of another.
    for k in range(fails.calls("cudaLaunchKernel")):
        fails.run("cudaLaunchKernel", k, LAUNCH_FAILED)
    for k in range(2):  # the first one is the pool's own
        fails("cudaStreamBeginCapture", 1 + k, CAPTURE_INVALIDATED)
        fails("cudaStreamEndCapture", 1 + k, CAPTURE_INVALIDATED)
        fails("cudaGraphInstantiateWithFlags", 1 + k, 2)
        fails("cudaGraphLaunch", k, LAUNCH_FAILED)


@torch.library.custom_op("memprof_test::wait", mutates_args=())
def wait(x: Tensor) -> Tensor:
    """Cannot be captured."""
    torch.cuda.synchronize()
    return x.clone()


wait.register_fake(torch.empty_like)
wait.register_autograd(lambda ctx, grad: torch.ops.memprof_test.wait(grad))


@pytest.mark.parametrize("how", ["none", "non-reentrant"])
def test_a_program_that_cannot_be_captured(how: str) -> None:
    def draws(x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = torch.ops.memprof_test.wait(OPERATORS["attention"](x, y))
        return OPERATORS["dropout"](x, out)

    graphs = run(GRAPHS, draws, how)
    check(graphs)
    assert count(LedgerKind.TREE_FAILURE) > 0
    assert [s.loss for s in run(NO_GRAPHS, draws, how)] == [s.loss for s in graphs]


def test_attention_in_a_checkpoint_whose_outputs_are_dead() -> None:
    # GIVEN compiled attention in a checkpoint around it, which compares metadata. The operator's
    # random state is a tensor of the host in a warm-up, and one of the device in a recording.
    def attention(x: Tensor, s: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(x, x, x * s, dropout_p=0.3)

    compiled = torch.compile(attention, mode="reduce-overhead")  # which observes nothing first
    s = torch.ones(16, device="cuda", requires_grad=True)
    x = torch.rand(1, 2, 32, 16, device="cuda")
    losses = []
    with use_in_inductor():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            s.grad = None
            # WHEN nobody holds its output: the recomputation could be recorded in the first step
            loss = checkpoint(compiled, x, s, use_reentrant=False).sum()
            loss.backward()
            assert s.grad is not None
            # THEN the gradient is that of the same random numbers
            torch.testing.assert_close((s * s.grad).sum(), loss)
            losses.append(loss.item())
    # AND there are recordings in the end
    assert len(set(losses)) == 4
    assert any(node.replays for m in all_managers() for node in m.nodes())


def test_a_forward_with_outputs_on_the_host_that_runs_in_backwards_alone_is_recorded() -> None:
    # GIVEN a forward that gives its random state as attention does, elsewhere in a capture
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        capturing = torch.cuda.is_current_stream_capturing()
        return x + 1, torch.zeros(2, device="cuda" if capturing else "cpu")

    f = graphed(forward, [torch.ones(4, device="cuda")], is_inference=False)
    out: list[Tensor] = []
    for step in in_steps(range(4)):
        out.clear()
        x = torch.ones(4, device="cuda", requires_grad=True)
        # WHEN all its calls come in a backward, as those in a reentrant checkpoint do
        x.register_hook(lambda g, step=step: out.extend(f([torch.full((4,), step, device="cuda")])))
        x.sum().backward()
        assert out[0].tolist() == [step + 1] * 4
    # THEN it is warmed up once and replayed
    assert count(LedgerKind.WARM_UP) == 1
    assert count(LedgerKind.RECORD) == 1
    assert count(LedgerKind.REPLAY) == 2

"""Every call that allocates, captures or instantiates fails in turn, in a step that trains.

The step is what autograd makes of two layers under ``torch.compile``: two forwards, whose
saved activations lie in the pool and die in their backwards.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.call.container import reset_cudagraph_trees
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind

from .support import frozen, graphed, in_steps, live_blocks, manager, pool_segments, same

pytestmark = pytest.mark.simgpu

STEPS = 5
OUT_OF_MEMORY = 2
CAPTURE_INVALIDATED = 901
ALONE = 10 << 20
"""A tensor larger than so many bytes gets a segment of its own from the device."""

LOST_BY_TORCH = {"cudaGraphGetNodes": 1}
"""Graphs that torch itself never destroys when such a call fails, once."""

Guard = Callable[[Callable[[], Any]], Any]
"""Makes a call of a graphed function, with a failure in it perhaps."""


class Layer:
    """``tanh(w * x)``, forward and backward, graphed."""

    def __init__(self, w: torch.Tensor, n: int) -> None:
        self.w = w
        like = torch.empty(n, device="cuda")
        self.forward = graphed(self._forward, [w, like], static=(0,), is_inference=False)
        self.backward = graphed(self._backward, [w, like, like, like], (0,), is_backward=True)

    @staticmethod
    def _forward(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.tanh(w * x)
        return [y, x + 0, y * y]

    @staticmethod
    def _backward(
        w: torch.Tensor, x: torch.Tensor, squared: torch.Tensor, grad: torch.Tensor
    ) -> list[torch.Tensor]:
        dz = grad * (1 - squared)
        return [(dz * x).sum(), dz * w]


def train(guard: Guard, n: int) -> bool:
    """Some steps; the values must be right, and at the end all is replayed.

    Returns:
        Whether the ledger tells of a failure.
    """
    w1, w2 = torch.full((1,), 0.5, device="cuda"), torch.full((1,), 2.0, device="cuda")
    first, second = Layer(w1, n), Layer(w2, n)
    out = []
    for i in in_steps(range(STEPS)):
        x = torch.full((n,), 0.1 * (i + 1), device="cuda")
        y1, x1, s1 = guard(functools.partial(first.forward, [w1, x]))
        y2, x2, s2 = guard(functools.partial(second.forward, [w2, y1]))
        seen = y2[:1].clone()
        grad = torch.full((n,), 1.0 / n, device="cuda")
        # As autograd calls it: nobody but the list of inputs holds what was saved.
        saved1, saved2 = [w1, x1, s1], [w2, x2, s2, grad]
        del x, y1, y2, x1, x2, s1, s2, grad
        g2, grad = guard(functools.partial(second.backward, saved2))
        saved1.append(grad)
        del grad
        g1, gx = guard(functools.partial(first.backward, saved1))
        out.append(torch.stack([seen.reshape(()), g1.reshape(()), g2.reshape(())]).cpu())
        del g1, g2, gx, seen, saved1, saved2
    same(torch.stack(out), expected())
    assert manager().path.state is ExecutionState.EXECUTION
    assert all(f.state.warmed_up for f in manager().functions)
    return any(e.kind is LedgerKind.TREE_FAILURE for e in manager().entries())


def expected() -> torch.Tensor:
    """An output and both gradients of each step, by autograd on the CPU."""
    out = []
    for i in range(STEPS):
        w1, w2 = (torch.tensor(v, requires_grad=True) for v in (0.5, 2.0))
        y = torch.tanh(w2 * torch.tanh(w1 * 0.1 * (i + 1)))
        y.backward()
        out.append(torch.stack([y.detach(), w1.grad, w2.grad]))  # type: ignore[list-item]
    return torch.stack(out)


def clean() -> None:
    reset_cudagraph_trees()
    gc.collect()
    torch.cuda.empty_cache()


def graphs() -> int:
    """Graphs of the driver's, handles of the host, that are not destroyed."""
    from memprof.simulated_cuda import control as simgpu

    return simgpu.live(simgpu.GRAPHS)


def check_nothing_is_left(graphs_before: int) -> None:
    from memprof.simulated_cuda import control as simgpu

    clean()
    assert simgpu.active_captures() == 0
    assert live_blocks() == 0
    assert pool_segments() == []
    assert simgpu.live(simgpu.EXECS) == 0
    assert graphs() == graphs_before
    assert torch.cuda.memory_allocated() == 0


class FailsAt:
    """Makes the k-th call of one function of the driver fail, within guarded calls."""

    def __init__(self, api: str, k: int, error: int) -> None:
        self.api, self.left, self.error = api, k, error

    def __call__(self, call: Callable[[], Any]) -> Any:
        from memprof.simulated_cuda import control as simgpu

        before = simgpu.calls(self.api)
        if self.left >= 0:
            simgpu.fail(self.api, self.left, self.error)
        try:
            return call()
        finally:
            simgpu.fail(self.api, 1 << 40, self.error)
            self.left -= simgpu.calls(self.api) - before


@pytest.mark.parametrize(
    ("api", "error", "every"),
    [
        ("cudaStreamBeginCapture", CAPTURE_INVALIDATED, 1),
        ("cudaStreamEndCapture", CAPTURE_INVALIDATED, 1),
        ("cudaGraphInstantiateWithFlags", OUT_OF_MEMORY, 1),
        ("cudaGraphGetNodes", OUT_OF_MEMORY, 1),
        # The allocator asks for it with each allocation and each free.
        ("cudaStreamGetCaptureInfo", CAPTURE_INVALIDATED, 3),
    ],
)
def test_training_goes_on_when_a_call_of_the_driver_fails(api: str, error: int, every: int) -> None:
    if api == "cudaStreamGetCaptureInfo" and compat.torch_version() >= (2, 12):
        pytest.skip("there all of torch asks for it, and loses a graph that it cannot ask for")
    with frozen():
        clean()
        counting = FailsAt(api, 1 << 30, error)
        assert not train(counting, 16)
        calls = (1 << 30) - counting.left
        assert calls > 0
        told = 0
        for k in range(0, calls, every):
            clean()
            before = graphs()
            at = FailsAt(api, k, error)
            told += train(at, 16)
            assert at.left < 0
            check_nothing_is_left(before + LOST_BY_TORCH.get(api, 0))
    assert told > 0


def test_torch_alone_loses_as_many_graphs() -> None:
    from memprof.simulated_cuda import control as simgpu

    with frozen():
        for api, lost in LOST_BY_TORCH.items():
            clean()
            before = graphs()
            graph = torch.cuda.CUDAGraph()
            simgpu.fail(api, 0, OUT_OF_MEMORY)
            with pytest.raises(RuntimeError), torch.cuda.graph(graph):
                torch.cuda._sleep(1)
            del graph
            clean()
            assert graphs() - before == lost


class RunsOut:
    """Lets memory run out once, in one guarded call.

    The allocator asks the device twice before it gives up, so it is the limit on this process's
    memory that is reached here, and the allocator's observer that lifts it.
    """

    armed: RunsOut | None = None

    def __init__(self, call: int = -1, more: int = 0) -> None:
        """Args: in guarded call number ``call``, ``more`` bytes above what is reserved then."""
        self.call, self.more = call, more
        self.calls = 0
        self.segments: list[tuple[int, int]] = []
        self.fired = False

    def __call__(self, call: Callable[[], Any]) -> Any:
        # Otherwise the allocator finds memory to give back, and does not run out.
        torch.cuda.empty_cache()
        if self.calls == self.call:
            allowed = torch.cuda.memory_reserved() + self.more
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(allowed / total)
            RunsOut.armed = self
        traced = torch._C._cuda_isHistoryEnabled() and len(trace())
        try:
            return call()
        finally:
            lift_the_limit()
            if traced is not False:
                more = 0
                for e in trace()[traced:]:
                    if e["action"] == "segment_alloc":
                        more += e["size"]
                        self.segments.append((self.calls, more))
                    elif e["action"] == "segment_free":
                        more -= e["size"]
            self.calls += 1


def retries() -> int:
    """How often the allocator had to give memory back to the device to go on."""
    return torch.cuda.memory_stats()["num_alloc_retries"]


def trace() -> list[dict[str, Any]]:
    return torch.cuda.memory._snapshot()["device_traces"][0]


def lift_the_limit() -> None:
    RunsOut.armed = None
    torch.cuda.set_per_process_memory_fraction(1.0)


def observe(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
    if RunsOut.armed is not None:
        RunsOut.armed.fired = True
        lift_the_limit()


@contextmanager
def observer() -> Iterator[None]:
    # Cannot be detached.
    if not hasattr(observe, "attached"):
        observe.attached = True
        torch._C._cuda_attach_out_of_memory_observer(observe)
    yield
    lift_the_limit()


def test_training_goes_on_when_memory_runs_out() -> None:
    n = ALONE // 4 + 1
    with observer(), frozen():
        # GIVEN what each call takes from the device, segment by segment
        clean()
        before = graphs()
        counting = RunsOut()
        torch.cuda.memory._record_memory_history("all", stacks="python")
        try:
            assert not train(counting, n)
        finally:
            torch.cuda.memory._record_memory_history(None)
        check_nothing_is_left(before)
        assert len(counting.segments) > 5
        told = 0
        for call, nbytes in counting.segments:
            clean()
            # WHEN the device has not quite so much
            retried = retries()
            at = RunsOut(call, nbytes - 1024)
            told += train(at, n)
            # THEN the values were right (``train`` looks), and
            assert at.fired or retries() > retried
            check_nothing_is_left(before)
    assert told > 0

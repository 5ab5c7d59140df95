"""Helpers of the tests on a CUDA device, simulated or real.

On the simulated device kernels compute only in values mode (SIMGPU_VALUES=1): without it
``same`` compares shapes and types, so that the bookkeeping can be tested quickly.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import repetition
import torch

from memprof.cudagraph_trees.call import container
from memprof.cudagraph_trees.call.entry import cudagraphify_impl
from memprof.cudagraph_trees.call.manager import CUDAGraphTreeManager
from memprof.cudagraph_trees.replay.node import CUDAGraphNode
from memprof.profiler.model import LedgerKind
from memprof.simulated_cuda.control import simulated

T = TypeVar("T")

SIMULATED = simulated()
VALUES = not SIMULATED or os.environ.get("SIMGPU_VALUES") == "1"


def same(a: Any, b: Any) -> None:
    """Assert that two results are the same, as far as this device computes anything."""
    if isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, torch.Tensor):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if VALUES:
            torch.testing.assert_close(a.detach().cpu(), b.detach().cpu(), rtol=1e-4, atol=1e-5)
    else:
        assert a == b


def graphed(
    fn: Callable[..., Any],
    inputs: Sequence[Any],
    static: Sequence[int] = (),
    *,
    is_inference: bool = True,
    is_backward: bool = False,
    device: int = 0,
    **options: Any,
) -> Callable[[list[Any]], list[Any]]:
    """``fn(*inputs)`` as a boxed function on graph trees."""

    def boxed(args: list[Any]) -> Any:
        own = list(args)
        args.clear()
        while own:
            return _call_and_drop(fn, own)
        return fn()

    return cudagraphify_impl(
        boxed,
        list(inputs),
        tuple(static),
        device_index=device,
        is_inference=is_inference and not is_backward,
        is_backward=is_backward,
        **options,
    )


def _call_and_drop(fn: Callable[..., Any], own: list[Any]) -> Any:
    out = fn(*own)
    own.clear()
    return out if isinstance(out, (list, tuple)) else [out]


def manager(device: int = 0) -> CUDAGraphTreeManager:
    """The manager, which must exist."""
    found = container.get_manager(device, create_if_none_exists=False)
    assert found is not None
    return found


def no_manager(device: int = 0) -> bool:
    """Whether there is none."""
    return container.get_manager(device, create_if_none_exists=False) is None


def roots(device: int = 0) -> list[CUDAGraphNode]:
    """The recordings that nothing precedes."""
    return [n for nodes in manager(device).tree.roots.values() for n in nodes]


def descendants(node: CUDAGraphNode) -> int:
    """Number of recordings below this one."""
    return sum(1 + descendants(n) for nodes in node.children.values() for n in nodes)


def pool_segments() -> list[dict[str, Any]]:
    """Segments of all private pools."""
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]


def live_blocks() -> int:
    """Live blocks in all private pools."""
    return sum(b["state"] == "active_allocated" for s in pool_segments() for b in s["blocks"])


def next_step() -> None:
    """What a call of a compiled function does to torch's own step counter."""
    from torch._dynamo.mutation_guard import GenerationTracker

    GenerationTracker.generation += 1


def in_steps(turns: Iterable[T]) -> Iterator[T]:
    """The turns of a loop, each in a new step."""
    for turn in turns:
        next_step()
        yield turn


@contextmanager
def step() -> Iterator[None]:
    """One explicitly marked step."""
    torch.compiler.cudagraph_mark_step_begin()
    yield


@contextmanager
def frozen() -> Iterator[None]:
    """The collector leaves alone what there is now: for tests that call it often."""
    gc.freeze()
    try:
        yield
    finally:
        repetition.thaw()


def collect() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def counts() -> Counter[LedgerKind]:
    """How often the manager did, declined or gave up on something, by kind."""
    found: Counter[LedgerKind] = Counter()
    for e in manager().entries():
        found[e.kind] += e.count
    return found

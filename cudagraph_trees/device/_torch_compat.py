"""Names of torch that only the CUDA device uses: private pools, captures, the pool's history."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from memprof.profiler.device._torch_compat import pool_segments

from .._torch_compat import bind, log, torch_version

_C: Any = torch._C

memory_snapshot = pool_segments
"""The caching allocator's segments of one private pool."""


def cuda_tensor(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    """A tensor over a storage, a normal one in inference mode as well: later calls use it again."""
    if not torch.is_inference_mode_enabled():
        return _cuda_tensor(metadata, storage)
    with torch.inference_mode(False):
        return _cuda_tensor(metadata, storage)


_cuda_tensor: Callable[[dict[str, Any], torch.UntypedStorage], torch.Tensor] = bind(
    "_construct_CUDA_Tensor_From_Storage_And_Metadata"
)
has_standard_deleter: Callable[[int], bool] = bind("_has_Standard_Deleter")
free_and_remove_deleter: Callable[[int], None] = bind("_free_And_Remove_DeleterFn")
set_tensor_message: Callable[[torch.Tensor, str], None] = bind("_set_storage_access_error_msg")
set_storage_message: Callable[[int, str], None] = bind("_set_storage_data_ptr_access_error_msg")


def swap_storage(a: torch.UntypedStorage, b: torch.UntypedStorage) -> None:
    a._swap_data_ptr_(b)  # type: ignore[attr-defined]


OnPool = Callable[[int, tuple[int, int]], None]
begin_allocate_to_pool: OnPool = bind("_cuda_beginAllocateCurrentThreadToPool")
end_allocate_to_pool: OnPool = bind("_cuda_endAllocateToPool")
release_pool: OnPool = bind("_cuda_releasePool")
pool_checkpoint: Callable[[int, tuple[int, int]], Any] = bind("_cuda_getCheckpointState")
restore_pool: Callable[[int, Any, list[int], list[int]], None] = bind(
    "_cuda_setCheckpointPoolState"
)
raw_delete: Callable[[int], None] = bind("_cuda_cudaCachingAllocator_raw_delete")
history_enabled: Callable[[], bool] = bind("_cuda_isHistoryEnabled")


def register_generators(graph: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> None:
    """Tell ``graph``, before its capture, what it draws from besides the default generator; torch
    2.14 and later find that out for themselves."""
    if torch_version() >= (2, 14):
        return
    # Half a registration would end the process when the graph is destroyed: for want of memory,
    # none is made.
    room = [torch.empty(1, dtype=torch.int64, device=g.device) for g in generators for _ in "ab"]
    del room
    for g in generators:
        graph.register_generator_state(g)


def end_failed_capture(
    device: int,
    pool: tuple[int, int],
    graph: torch.cuda.CUDAGraph,
    stream: torch.cuda.Stream,
    generators: Sequence[torch.Generator],
    *,
    began: bool,
) -> bool:
    """Finish what a capture that failed to begin or to end has left undone, and drop the graph.

    ``CUDAGraph`` tells the allocators that a capture has ended

    * up to 2.12 only after ending it has succeeded: without this, the allocator defers frees for
      ever. In 2.11 the states of generators, too, go on counting as captured, and drawing raises.
      Where what failed is the question for the graph's nodes, the allocator was told, and the pool
      is not given back;
    * in 2.13 before, but not if the capture failed to begin; and the pool is given back only if
      the capture ended well;
    * from 2.14 on always. Doing it twice would abort the process, which is why other versions, of
      which nothing is known, are left alone: all they can do is leak.

    The graph that a capture made whose nodes torch could not ask for is lost: no version destroys
    it, and Python has no way to it. That is memory of the host.

    Args:
        began: whether it is the end that failed, or what was captured.

    Returns whether no more can be captured in the pool: the allocator of pinned memory still
    captures into it, which Python can neither see nor end.
    """
    version = torch_version()
    ended_well = _has_pool(graph)
    with contextlib.suppress(RuntimeError):
        graph.reset()
    if version not in ((2, 11), (2, 12), (2, 13)):
        return False
    try:
        end_allocate_to_pool(device, pool)
    except RuntimeError:  # the allocator was told
        still_told = False
    else:
        still_told = True
    if still_told or (not ended_well and (began or version == (2, 13))):
        release_pool(device, pool)
    if version == (2, 11) and not ended_well:
        _end_capture_of_generators(device, stream, generators)
    return still_told


def _end_capture_of_generators(
    device: int, stream: torch.cuda.Stream, generators: Sequence[torch.Generator]
) -> None:
    """Torch 2.11: let the states of generators no longer count as captured. Capturing nothing does
    that; from new states, graphs that were captured before would not draw."""
    nothing = torch.cuda.CUDAGraph()
    caller = torch.cuda.current_stream(device)
    try:
        register_generators(nothing, generators)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "the graph is empty"
            with torch.cuda.graph(nothing, stream=stream, capture_error_mode="thread_local"):
                pass
    except RuntimeError:
        torch.cuda.set_stream(caller)
        log.exception(
            "after a failed capture another one failed: this process can no longer draw random "
            "numbers on %s (torch 2.11)",
            torch.device("cuda", device),
        )


def _has_pool(graph: torch.cuda.CUDAGraph) -> bool:
    try:
        graph.pool()
    except RuntimeError:  # "without a preceding successful capture"
        return False
    return True


def graph_launch(graph: torch.cuda.CUDAGraph) -> Callable[[], object]:
    """Its ``replay``. In 2.11 that is a Python method that does nothing but call the C++ one, and
    costs as much. Whoever has replaced it, as a simulated device may, wants to be called."""
    replaced = torch.cuda.CUDAGraph.replay.__module__ != "torch.cuda.graphs"
    if replaced or torch_version() >= (2, 12):
        return graph.replay
    return super(torch.cuda.CUDAGraph, graph).replay


@contextlib.contextmanager
def allocator_history() -> Iterator[Callable[[int], list[dict[str, Any]]]]:
    """Within it the caching allocator writes down what it does, with Python frames, unless the user
    has switched a history on, which goes on as it was. Yields what gives the events on one device
    since the beginning, to be called inside."""
    theirs = history_enabled()
    if not theirs:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    last = [_identity(t[-1]) if t else None for t in _device_traces()] if theirs else []

    def events(device: int) -> list[dict[str, Any]]:
        traces = _device_traces()
        trace = traces[device] if device < len(traces) else []
        before = last[device] if device < len(last) else None
        # From the end: a bounded history drops entries at its beginning.
        for i in range(len(trace) - 1, -1, -1):
            if _identity(trace[i]) == before:
                return trace[i + 1 :]
        return trace

    try:
        yield events
    finally:
        if not theirs:
            torch.cuda.memory._record_memory_history(None)


def _identity(event: dict[str, Any]) -> tuple[object, ...]:
    return tuple(event.get(key) for key in ("time_us", "action", "addr", "size"))


def _device_traces() -> list[list[dict[str, Any]]]:
    return torch.cuda.memory._snapshot()["device_traces"]  # type: ignore[no-any-return]


@contextlib.contextmanager
def keep_conv_cache() -> Iterator[None]:
    """cudnn's benchmark mode must not empty the allocator's cache meanwhile."""
    before = _C._cuda_get_conv_benchmark_empty_cache()
    _C._cudnn_set_conv_benchmark_empty_cache(False)
    try:
        yield
    finally:
        _C._cudnn_set_conv_benchmark_empty_cache(before)


@contextlib.contextmanager
def fresh_cublas_workspaces() -> Iterator[None]:
    """Workspaces that cuBLAS caches must neither come from the pool nor stay in it."""
    # Looked up at each call: who watches the memory stands in for it.
    _C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        _C._cuda_clearCublasWorkspaces()


def control_flow(mode: str) -> AbstractContextManager[Any]:
    """Within ``ControlFlowOpWarmupDispatchMode`` ``torch.cond`` and the like warm up all branches,
    within ``CUDAGraphCaptureControlFlowOpDispatchMode`` they are captured as conditional nodes:
    where this torch has these modes."""
    try:
        from torch._higher_order_ops import cudagraph_conditional_nodes as nodes
    except ImportError:  # before 2.12
        return contextlib.nullcontext()
    found = getattr(nodes, mode, None)
    return contextlib.nullcontext() if found is None else found()


def publish_current_stream() -> None:
    """Let custom operators that ask Dynamo's object table for the stream see this one."""
    try:
        from torch._dynamo.graph_bytecode_inputs import (
            CURRENT_STREAM_INDEX,
            set_external_object_by_index,
        )
    except ImportError:  # before 2.12
        return
    set_external_object_by_index(CURRENT_STREAM_INDEX, torch.cuda.current_stream())

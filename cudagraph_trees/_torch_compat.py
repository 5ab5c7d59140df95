"""Every private or version-dependent name of torch that graph trees use."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from memprof.profiler.sources.allocator.replaced import before, replace

_C: Any = torch._C
_logging: Any = torch._logging

log = logging.getLogger("memprof.cudagraph_trees")
# That of torch's own trees, which says what it says of these, too: TORCH_LOGS=cudagraphs.
graphs_log: logging.Logger = _logging.getArtifactLogger(
    "torch._inductor.cudagraph_trees", "cudagraphs"
)


def bind(name: str) -> Callable[..., Any]:
    """``torch._C.<name>``; None in a build without CUDA, where nobody calls it."""
    return getattr(_C, name, None)  # type: ignore[return-value]


# ---- storages and tensors


# A tensor over the same storage that is no view of the first to autograd.
reinterpret_tensor: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor] = (
    _C._dynamo.guards._reinterpret_tensor
)


def likeness(t: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """``reinterpret_tensor``, a normal one in inference mode as well."""
    if not torch.is_inference_mode_enabled():
        return reinterpret_tensor(t, shape, stride, 0)
    with torch.inference_mode(False):
        return reinterpret_tensor(t, shape, stride, 0)


storage_use_count: Callable[[int], int] = _C._storage_Use_Count
free_weak_ref: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
# None if the storage is dead.
storage_from_weak: Callable[[int], torch.UntypedStorage | None] = (
    torch.UntypedStorage._new_with_weak_ptr
)
storage_at: Callable[[int, torch.device, int], torch.UntypedStorage] = (
    _C._construct_storage_from_data_pointer
)
pointers_equal: Callable[[Sequence[Any], Sequence[int | None], Sequence[int]], bool] = bind(
    "_tensors_data_ptrs_at_indices_equal"
)
foreach_copy: Callable[[list[torch.Tensor], list[torch.Tensor]], Any] = torch._foreach_copy_
internal_overlap: Callable[[torch.Tensor], int] = torch._debug_has_internal_overlap

# "Cached tensors": autograd and autocast ignore one extra reference to them.
set_cached_tensors_enabled: Callable[[bool], None] = _C._set_cached_tensors_enabled


def _cached(change: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Wrap ``change`` to turn cached tensors on again: torch's own trees turn them off at reset."""

    def changed(t: torch.Tensor) -> None:
        try:
            change(t)
        except RuntimeError:
            _C._set_cached_tensors_enabled(True)
            change(t)

    return changed


add_cached_tensor = _cached(_C._add_cached_tensor)
remove_cached_tensor = _cached(_C._remove_cached_tensor)


def another(tensor: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """Make a tensor like ``twin``, over its storage, that is cached in place of ``tensor``."""
    other = likeness(twin, tuple(twin.shape), twin.stride())
    remove_cached_tensor(tensor)
    add_cached_tensor(other)
    return other


def weak_ref(t: torch.Tensor | torch.UntypedStorage) -> int:
    """A weak pointer to the storage; the caller owns it and must ``free_weak_ref`` it."""
    storage = t if isinstance(t, torch.UntypedStorage) else t.untyped_storage()
    pointer: int = storage._weak_ref()  # type: ignore[assignment]
    return pointer


def _references_of_wrapper() -> int:
    t = torch.empty(0)
    return storage_use_count(t.untyped_storage()._cdata) - 1


# A storage that Python has ever seen is held by its Python object, for as long as a tensor is.
wrapper_references = _references_of_wrapper()


def can_swap_storage() -> bool:
    """Tells whether a storage can be given other memory in place (torch 2.12 and later)."""
    return hasattr(torch.UntypedStorage, "_swap_data_ptr_")


def torch_version() -> tuple[int, int]:
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def limit_counts_static_inputs() -> bool:
    """Tells whether recordings made anew because a static input moved count against
    ``cudagraph_unexpected_rerecord_limit``, as they do before torch 2.13."""
    return torch_version() < (2, 13)


def current_compile_id() -> object:
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


# ---- thread-local state that autograd carries to its own threads


def stash_in_tls(key: str, value: object) -> None:
    """Put ``value`` where autograd carries it to its threads. Torch before 2.12 drops a reference
    that it was not given when the entry is replaced or its thread ends: it is given one here."""
    if torch_version() < (2, 12):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    _C._stash_obj_in_tls(key, value)


# Number of the backward that the calling thread runs, for itself or for another one; -1 if none.
graph_task: Callable[[], int] = _C._current_graph_task_id


def in_checkpoint() -> bool:
    """Tells whether what autograd saves now goes to a checkpoint that is not reentrant."""
    hooks = _C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


def checkpoint_runs() -> bool:
    """Tells whether the calling thread is inside of a function of ``torch.utils.checkpoint``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


get_from_tls: Callable[[str], Any] = _C._get_obj_in_tls
is_in_tls: Callable[[str], bool] = _C._is_key_in_tls


# ---- generations


def step_counters() -> tuple[Any, Any]:
    """``(MarkStepBox, GenerationTracker)`` of torch: ``mark_step_counter`` of the first moves with
    ``torch.compiler.cudagraph_mark_step_begin()``, ``generation`` of the second with every call of
    something that ``torch.compile`` returned."""
    from torch._dynamo.mutation_guard import GenerationTracker
    from torch._inductor.cudagraph_trees import MarkStepBox

    return MarkStepBox, GenerationTracker


def on_step_mark(do: Callable[[], None]) -> Callable[[], None]:
    """Call ``do`` when a program calls ``torch.compiler.cudagraph_mark_step_begin()``, before the
    step begins; what is returned ends that."""
    import torch._inductor.cudagraph_trees as trees

    return replace([trees], "mark_step_begin", before(do))


def also_tell_of_incomplete_warm_ups(ours: Callable[[], None]) -> None:
    """Call ``ours`` as well, from now on, when a program calls
    ``torch.compiler.cudagraph_mark_warmup_incomplete()`` (torch 2.15), which knows of torch's own
    trees only."""
    import torch._inductor.cudagraph_trees as trees

    theirs = getattr(trees, "mark_warmup_incomplete", None)
    if theirs is not None and not hasattr(theirs, "__wrapped__"):
        replace([trees], "mark_warmup_incomplete", before(ours))


_LATER_OPTIONS: dict[str, Any] = {
    "cudagraph_managed_input_rerecord_limit": 5,
    "cudagraph_managed_input_rerecord_action": "copy",
    "cudagraph_initial_mempool_allocation_gb": None,
    "cudagraph_dynamic_shape_rerecord_limit": None,
    "cudagraph_trees_generation_cloning": None,
}


def triton_option(name: str) -> Any:
    """``torch._inductor.config.triton.<name>``, or where this torch lacks it its later default."""
    from torch._inductor import config

    if name in _LATER_OPTIONS:
        return getattr(config.triton, name, _LATER_OPTIONS[name])
    return getattr(config.triton, name)


def _with_option(name: str, value: object) -> AbstractContextManager[Any]:
    """Within it, torch finds ``value`` for the option ``triton.<name>``."""
    from torch._inductor import config

    if triton_option(name) == value:
        return contextlib.nullcontext()
    patch: AbstractContextManager[Any] = config.patch({f"triton.{name}": value})
    return patch


def announce_skip(message: str, or_error: bool) -> None:
    """Log and count as torch does when graphs are not used; with ``or_error``, raise a
    ``RuntimeError``."""
    from torch._inductor.cudagraph_utils import log_cudagraph_skip_and_bump_counter

    with _with_option("cudagraph_or_error", or_error):
        log_cudagraph_skip_and_bump_counter(message)


def count_copied_inputs(n: int) -> None:
    """Advance torch's counter of inputs that recordings copy."""
    from torch._dynamo.utils import counters

    counters["inductor"]["cudagraph_recorded_non_static_inputs"] += n


def mutation_message(placeholders: Sequence[Any], indices: Sequence[int]) -> str:
    """Torch's sentence about inputs that a function writes to, with the line that does."""
    from torch._inductor.cudagraph_utils import get_mutation_stack_trace

    if not placeholders:
        return f"skipping cudagraphs due to mutated inputs ({len(indices)} instances)"
    return str(get_mutation_stack_trace(placeholders, indices))


def warn_many_shapes(cache: dict[Any, Any], key: Any, limit: int | None) -> bool:
    """Torch's warning about many distinct sizes; whether it was given."""
    from torch._inductor.cudagraph_utils import maybe_warning_due_to_dynamic_shape

    with _with_option("cudagraph_dynamic_shape_warn_limit", limit):
        return bool(maybe_warning_due_to_dynamic_shape(cache, key))


def describe_inputs(inputs: Sequence[Any]) -> str:
    from torch._inductor.cudagraph_trees import format_inputs_log

    return str(format_inputs_log(list(inputs)))


def timed(name: str, compile_id: object, *, backward: bool) -> AbstractContextManager[Any]:
    """Torch's measurement of what wrapping and recording take, also for ``TORCH_TRACE``."""
    from torch._dynamo.utils import dynamo_timed
    from torch._guards import CompileId

    measured: AbstractContextManager[Any] = dynamo_timed(
        name,
        log_pt2_compile_event=True,
        compile_id=compile_id if isinstance(compile_id, CompileId) else None,
        is_backward=backward,
        dynamo_compile_column_us="runtime_cudagraphify_time_us",
    )
    return measured


def recording_callbacks(compile_id: object) -> AbstractContextManager[Any]:
    from torch._dynamo.callback import CallbackTrigger, callback_handler

    return callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, str(compile_id))


def overlap_if_known(output_code: Any) -> Callable[[torch.Tensor], bool]:
    """Torch's test whether an input overlaps itself, False where its sizes depend on data, of which
    torch cannot ask. From 2.12 on it does not ask at all."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    theirs = getattr(output_code, "complex_memory_overlap", None)

    def overlaps(t: torch.Tensor) -> bool:
        return theirs is not None and not free_unbacked_symbols(t) and bool(theirs(t))

    return overlaps


def alignment_checked_inputs(inputs: Sequence[Any], static: Sequence[int]) -> Sequence[int]:
    """Inputs whose alignment Inductor's code relies on and nothing guarantees."""
    from torch._inductor.compile_fx import get_input_idxs_to_check

    return get_input_idxs_to_check(inputs, static)


def aligned_static_inputs(inputs: Sequence[Any], static: Sequence[int]) -> Sequence[int]:
    """The inputs among ``static`` whose memory is aligned as the code expects."""
    from torch._inductor.utils import remove_unaligned_input_idxs

    return remove_unaligned_input_idxs(inputs, static)


def is_misaligned(t: torch.Tensor) -> bool:
    """Tells whether ``t`` may not be an input that Inductor's code takes for aligned."""
    from torch._inductor.utils import ALIGNMENT

    return bool(t.data_ptr() % ALIGNMENT)


def align_inputs(inputs: list[Any], checked: Sequence[int]) -> None:
    from torch._inductor.utils import copy_misaligned_inputs

    copy_misaligned_inputs(inputs, checked)


def with_aligned_inputs(
    model: Callable[[list[Any]], Any], checked: Sequence[int], mutated: Sequence[int]
) -> Callable[[list[Any]], Any]:
    """``model``, with misaligned inputs copied before and written-to ones copied back."""
    if not checked:
        return model
    from torch._inductor.utils import align_inputs_from_check_idxs
    from torch.utils._ordered_set import OrderedSet

    return align_inputs_from_check_idxs(
        model, inputs_to_check=checked, mutated_input_idxs=OrderedSet(mutated)
    )


# ---- the device: private pools, captures, the allocator's history


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


@contextlib.contextmanager
def allocator_history() -> Iterator[None]:
    """Within it the caching allocator keeps the Python lines that allocate, unless the user has
    switched a history on, which goes on as it was."""
    theirs = history_enabled()
    if not theirs:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    try:
        yield
    finally:
        if not theirs:
            torch.cuda.memory._record_memory_history(None)


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


def annotated(wanted: bool) -> dict[str, Any]:
    """Arguments of ``torch.cuda.graph``, from 2.12 on, with which it keeps annotations of
    kernels."""
    return {"enable_annotations": True} if wanted else {}


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

    Torch tells its allocators that a capture has ended: up to 2.12 only if ending it succeeded (in
    2.11 generators, too, go on counting as captured); in 2.13 not if it failed to begin; from 2.14
    on always. Doing it twice would abort the process, so other versions are left alone.

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
    """``replay`` of the graph, in 2.11 the C++ one: the Python method around it costs as much and
    does nothing else. One that replaces it, as a simulated device's may, is called."""
    replaced = torch.cuda.CUDAGraph.replay.__module__ != "torch.cuda.graphs"
    if replaced or torch_version() >= (2, 12):
        return graph.replay
    return super(torch.cuda.CUDAGraph, graph).replay


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
    """The mode of this name, where this torch has it: ``torch.cond`` and the like warm up all
    branches in ``ControlFlowOpWarmupDispatchMode``, and are captured as conditional nodes in
    ``CUDAGraphCaptureControlFlowOpDispatchMode``."""
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

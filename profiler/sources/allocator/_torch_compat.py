"""Private and version-specific torch; read on 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.autograd.graph
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from memprof.profiler.model import SourceFrame
from memprof.profiler.support.process_hooks import collector_paused

from .replaced import Undo, before, replace, undo_all

_BEFORE_2_15 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15)

_T = TypeVar("_T")

MAX_ENTRIES = 1_000_000
"""Most events of one device's allocator history between two drains."""

NormWithStatistics = torch.nn.modules.batchnorm._NormBase
"""BatchNorm and InstanceNorm: their buffers are running statistics."""


def wrap_backward(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace the one function by which ``backward()`` and ``grad()`` start autograd's engine."""
    return replace([torch.autograd.graph, torch.autograd], "_engine_run_backward", around)


def around_clearing_of_workspaces(do: Callable[[bool], None]) -> Undo:
    """Call ``do(True)`` before and ``do(False)`` after Python code has cuBLAS's workspaces given
    back, as it does around a capture."""

    def around(clear: Callable[[], None]) -> Callable[[], None]:
        def cleared() -> None:
            do(True)
            clear()
            do(False)

        return cleared

    return replace([torch._C], "_cuda_clearCublasWorkspaces", around)


def on_history(do: Callable[[], None]) -> Undo:
    """Call ``do`` before anybody, memprof included, begins or ends the allocator's history."""
    around = before(lambda *_: do())
    names = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
    return undo_all(*(replace([torch._C], name, around) for name in names))


def on_module_tensors(do: Callable[[torch.nn.Module], None]) -> Undo:
    """Call ``do`` with every module that gets a parameter, a buffer or a module from here on."""

    def hook(module: torch.nn.Module, name: str, value: Any) -> None:
        do(module)

    def around(restore: Callable[..., None]) -> Callable[..., None]:
        def restored(module: torch.nn.Module, state: Any) -> None:
            restore(module, state)
            do(module)

        return restored

    return undo_all(
        torch.nn.modules.module.register_module_parameter_registration_hook(hook).remove,
        torch.nn.modules.module.register_module_buffer_registration_hook(hook).remove,
        torch.nn.modules.module.register_module_module_registration_hook(hook).remove,
        # Copies and what was pickled get theirs at once.
        replace([torch.nn.Module], "__setstate__", around),
    )


def on_optimizer(do: Callable[[torch.optim.Optimizer], None]) -> Undo:
    """Call ``do`` with an optimizer before it is made."""
    return replace([torch.optim.Optimizer], "__init__", before(lambda self, *_, **__: do(self)))


def on_checkpoint(do: Callable[[Sequence[Any]], None]) -> Undo:
    """Call ``do`` with the arguments of each function that is run under activation checkpointing,
    in either way of ``torch.utils.checkpoint``, by eager code."""
    module: Any = importlib.import_module("torch.utils.checkpoint")

    def with_all(*args: Any, **kwargs: Any) -> None:
        # From 2.15 on those of the function are a tuple and a dict among these.
        given: list[Any] = []
        for a in (*args, *kwargs.values()):
            given += a if isinstance(a, tuple) else a.values() if isinstance(a, dict) else (a,)
        do(given)

    around = before(lambda *args: do(args))
    undone = [replace([module.CheckpointFunction], "forward", around)]
    if hasattr(module, "_NoopSaveInputs"):  # Until 2.12.
        undone.append(replace([module._NoopSaveInputs], "forward", around))
    else:
        name = "_checkpoint_without_reentrant_generator"
        name += "_impl" if hasattr(module, f"{name}_impl") else ""
        undone.append(replace([module], name, before(with_all)))
    return undo_all(*undone)


def history_enabled() -> bool:
    return bool(torch._C._cuda_isHistoryEnabled())


def has_context(device: int) -> bool:
    """Tells whether this process has a context on a CUDA device, without making one."""
    there: Callable[[int], bool] = torch._C._cuda_hasPrimaryContext  # type: ignore[attr-defined]
    return there(device)


def memory_stats(device: int) -> dict[str, Any]:
    """Counters of a device's allocator, as ``torch.cuda.memory_stats_as_nested_dict`` has them."""
    stats: dict[str, Any] = torch._C._cuda_memoryStats(device)
    return stats


def stop_history() -> None:
    torch.cuda.memory._record_memory_history(None)


def record_history() -> None:
    """Begin the allocator's history anew, with Python's frames where memory is asked for."""
    torch.cuda.memory._record_memory_history(
        context="alloc", stacks="python", max_entries=MAX_ENTRIES, clear_history=True
    )


def drain_history() -> dict[str, Any]:
    """The allocator's state, with the history since it was last taken.

    Events of other threads meanwhile are lost: Note [Draining the history] in
    ``history_follower.py``. So would be those of Python's collector, since a snapshot makes many
    objects: it is paused.
    """
    # A snapshot with Python's frames asks torch for Inductor's lines, which imports all of it where
    # nothing was compiled: a second, and frames of the program that are kept with their tensors.
    there = "torch._inductor" in sys.modules
    undo = undo_all() if there else replace([torch], "__getattr__", _without_inductor)
    try:
        with collector_paused():
            snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
            record_history()
    finally:
        undo()
    return snapshot


def _without_inductor(find: Callable[[str], Any]) -> Callable[[str], Any]:
    here = threading.get_ident()

    def attribute(name: str) -> Any:
        if name == "_inductor" and threading.get_ident() == here:
            raise AttributeError(name)
        return find(name)

    return attribute


def allocation_counts(device: int) -> tuple[int, int]:
    """Numbers of blocks that the allocator of a device has handed out, and has got back."""
    counts: dict[str, int] = memory_stats(device)["allocation"]["all"]
    asked, let_go = _before_reset.get(device, (0, 0))
    return asked + counts["allocated"], let_go + counts["freed"]


_before_reset: dict[int, tuple[int, int]] = {}
"""Blocks counted on each device before somebody set the counters back."""


def keep_counting() -> Undo:
    """Let counts go on where a program calls ``torch.cuda.reset_accumulated_memory_stats``."""

    def around(reset: Callable[[int], None]) -> Callable[[int], None]:
        def counted(device: int) -> None:
            counts = allocation_counts(device)
            reset(device)  # to zero
            _before_reset[device] = counts

        return counted

    return replace([torch._C], "_cuda_resetAccumulatedMemoryStats", around)


def on_cuda_start(do: Callable[[], None]) -> None:
    """Call ``do`` once CUDA has started in this process, now if it has."""
    torch.cuda._lazy_call(do)  # type: ignore[no-untyped-call]


def clear_workspaces() -> None:
    torch._C._cuda_clearCublasWorkspaces()


def existing(*kinds: type) -> list[Any]:
    """Objects of classes, and of those below them, that Python's collector knows.

    Found as what refers to a class: ``gc.get_objects()`` hands out tuples that somebody is still
    building, which then fail to grow (``_PyTuple_Resize``). By ``type``, since ``isinstance`` asks
    the object, and some load modules to answer.
    """
    classes = list(kinds)
    for kind in classes:
        classes += type.__subclasses__(kind)
    known = set(classes)
    return [x for x in gc.get_referrers(*known) if type(x) in known]


def unfreeze() -> None:
    """Let ``existing`` see again what ``gc.freeze()`` has hidden from the collector, as serving
    engines do when they are ready. For a process that is about to end."""
    gc.unfreeze()


def plain_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory that a tensor is made of: itself, or those inside a subclass."""
    subclass: Any = tensor
    if not is_traceable_wrapper_subclass(subclass):
        return [tensor]
    names, _ = subclass.__tensor_flatten__()
    # From torch 2.12 on other objects are among them: a DTensor's mesh.
    inner = [x for name in names if isinstance(x := getattr(tensor, name), torch.Tensor)]
    return [t for x in inner for t in plain_tensors(x)]


def pool_id(pool: Any) -> tuple[int, int] | None:
    """Id of the pool given to ``capture_begin``: a handle, or from 2.14 on a ``MemPool``."""
    handle = getattr(pool, "id", pool)
    return None if handle is None else (int(handle[0]), int(handle[1]))


def pool_of(graph: torch.cuda.CUDAGraph) -> tuple[int, int] | None:
    """Id of the pool of a captured graph; None if it has none, as after ``reset()``."""
    try:
        return pool_id(graph.pool())
    except RuntimeError:  # "without a preceding successful capture"
        return None


def pool_segments(pool: tuple[int, int]) -> list[dict[str, Any]]:
    """The caching allocator's segments of one pool, on all devices."""
    segments: list[dict[str, Any]] = _without_history(pool)["segments"]
    return segments


def _without_history(pool: tuple[int, int]) -> dict[str, Any]:
    # Torch before 2.15 drops a reference to each thing in the tuple that it was not given, until
    # the interpreter crashes: they are given here.
    which = (*pool, False)
    if _BEFORE_2_15:
        for x in which:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))
    found: dict[str, Any] = torch._C._cuda_memorySnapshot(which)
    return found


def storage_addresses() -> list[int]:
    """First bytes of the CUDA memory that tensors in Python have, on any device, ascending."""
    tensors = (t for t in existing(torch.Tensor) if not is_stand_in(t))
    return sorted({address for t in tensors for address, _ in memory_of(t, "cuda")})


def workspace_sizes(device: int) -> set[int]:
    """Bytes that workspaces of cuBLAS and cuBLASLt have on a device
    (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
    hopper = torch.cuda.get_device_capability(device)[0] >= 9
    sizes = {4096 * 8 * 1024 if hopper else 4096 * 1024 * 2 + 16 * 1024 * 8}
    lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    sizes.add((int(lt) if lt.isdigit() else 1024) * 1024)
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    pairs = re.findall(r":(\d+):(\d+)", config)
    if pairs:
        sizes.add(sum(int(kib) * 1024 * int(count) for kib, count in pairs))
    return sizes


def transient_workspace_sizes(device: int) -> set[int]:
    """Bytes of the workspaces that each operation on cuBLAS or cuBLASLt asks for and gives back at
    once; none where torch keeps them instead, as before 2.15."""
    size = getattr(torch._C, "_cuda_getCublasWorkspaceSize", None)
    if _BEFORE_2_15 or size is None or os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE", "0") != "0":
        return set()
    return {int(size()), *workspace_sizes(device)}


def on_out_of_memory(observer: Callable[[int, int, int, int], None]) -> None:
    """Have ``observer`` called, for as long as the process lives, where CUDA has no more memory: by
    the thread that asked, without the allocator's lock, before the error is raised, with the device
    and bytes: tried to get, allowed and free. It must not raise. Only where CUDA has started, and
    the allocator in use has such observers.
    """
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        torch._C._cuda_attach_out_of_memory_observer(observer)  # type: ignore[attr-defined, unused-ignore]


def segments_now() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The allocator's segments with their blocks, and its settings; no call to the driver."""
    found = _without_history((0, 0))  # Of every pool.
    return found["segments"], found.get("allocator_settings", {})


def frames_of_generated(file: str, line: int) -> list[SourceFrame]:
    """The program's own frames of a line of Inductor's generated code, innermost first."""
    codecache = sys.modules.get("torch._inductor.codecache")
    if codecache is None:
        return []
    found = codecache.PyCodeCache.stack_frames_for_code(file, line) or []
    return [SourceFrame(f["filename"], int(f["line"]), f["name"]) for f in found]


def without_torch_function() -> Any:
    """Context in which attributes of tensor subclasses are torch's own, on this thread."""
    return torch._C.DisableTorchFunctionSubclass()


def is_stand_in(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor has no memory of its own: the compiler's placeholders."""
    return isinstance(tensor, (FakeTensor, FunctionalTensor))


def memory_of(tensor: torch.Tensor, device_type: str) -> list[tuple[int, int]]:
    """Address and bytes of each storage on devices of a type, or of any for "", that a tensor is
    made of; none where it cannot be seen."""
    try:
        found = []
        for plain in plain_tensors(tensor):
            if plain.device.type == device_type or not device_type:
                storage = plain.untyped_storage()
                found.append((storage.data_ptr(), storage.nbytes()))
        return [(address, nbytes) for address, nbytes in found if address and nbytes]
    except Exception:  # Sparse ones, subclasses that forbid a look, outputs of replays gone by.
        return []


def current_operation() -> Any:
    """The operation of autograd whose backward this thread runs, None if it runs none."""
    return torch._C._current_autograd_node()


def _seen(look: Callable[[], _T], otherwise: _T) -> _T:
    """Result of ``look()`` at an object, or ``otherwise`` if it raises."""
    try:
        return look()
    except Exception:
        return otherwise


def node_of(tensor: torch.Tensor) -> Any:
    """The operation of autograd that made a tensor."""
    return _seen(lambda: tensor.grad_fn, None)  # Not of a view whose base was written to meanwhile.


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    return _seen(lambda: tensor.grad if tensor.requires_grad and tensor.is_leaf else None, None)


def sequence_of(tensor: torch.Tensor) -> int:
    """A number that is higher for tensors that autograd made later; -1 for others."""
    node = node_of(tensor)
    return _seen(lambda: int(node._sequence_nr()), -1)


def next_functions(node: Any) -> Sequence[tuple[Any, int]]:
    return _seen(lambda: node.next_functions, ())


@functools.cache
def _saved_names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def saved_by(node: Any) -> list[torch.Tensor]:
    """Tensors that an operation of autograd has saved, as stored (no unpack hook runs); hooks'
    results too."""
    found: list[Any] = []
    kind: Any = type(node)
    for name in _saved_names(kind):
        with contextlib.suppress(Exception):  # It has been released already.
            saved = getattr(node, name)
            for one in saved if isinstance(saved, (list, tuple)) else (saved,):
                found.append(one.data)
    found.append(getattr(node, "variable", None))  # Whose gradient AccumulateGrad adds to.
    # What AOTAutograd saves past the check of versions stands in attributes.
    for value in list(getattr(node, "__dict__", {}).values()):
        found += value if isinstance(value, (list, tuple)) else (value,)
    return [one for one in found if isinstance(one, torch.Tensor)]


def compiled_autograd_is_on() -> bool:
    """Tells whether backwards are captured, with the hooks of their operations."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def writes_to(tensor: torch.Tensor) -> int | None:
    """Writes to a tensor so far (its version); None where torch does not count."""
    return _seen(lambda: int(tensor._version), None)  # Not of one made in inference mode.


def is_marked_static(tensor: torch.Tensor) -> bool:
    """Tells whether ``torch._dynamo.mark_static_address`` was called with a tensor."""
    return _seen(lambda: "_dynamo_static_input_type" in tensor.__dict__, False)

"""Everything private of torch that the tracker touches. Same in torch 2.11 to 2.15."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any, NamedTuple

import torch
from torch._C._autograd import DeviceType

# --- tensors ------------------------------------------------------------------------------


def storage_address(tensor: torch.Tensor) -> int:
    """Address of the tensor's StorageImpl, without a Python object for the storage; raises whatever
    where it has none (sparse, opaque, batched)."""
    address: int = torch._C._storage_address(tensor)  # type: ignore[attr-defined]
    return address


@functools.cache
def stand_ins() -> tuple[type, ...]:
    """Tensor classes that have no memory of their own: the compiler's placeholders."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return (FakeTensor, FunctionalTensor)


def is_wrapper(tensor: torch.Tensor) -> bool:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return bool(is_traceable_wrapper_subclass(tensor))


def without_torch_function() -> Any:
    """Context in which attributes of tensor subclasses are torch's own, on this thread."""
    return torch._C.DisableTorchFunctionSubclass()


# --- accelerators -------------------------------------------------------------------------


def cuda_in_use() -> bool:
    """Tells whether this process has initialised CUDA; asking does not do it."""
    return bool(torch.cuda.is_initialized()) and not torch.cuda._is_in_bad_fork()  # type: ignore[no-untyped-call]


def cuda_statistics(device: int) -> dict[str, Any]:
    """The allocator's own counters, nested: 8 µs, no call to the driver.
    ``torch.cuda.memory_stats`` flattens the same into 150 entries for ten times the time."""
    found: dict[str, Any] = torch._C._cuda_memoryStats(device)
    return found


def cuda_segments() -> list[dict[str, Any]]:
    """The allocator's segments with their pools and blocks; bookkeeping, no call to the driver."""
    found: list[dict[str, Any]] = torch._C._cuda_memorySnapshot(None)["segments"]  # type: ignore[attr-defined, unused-ignore]
    return found


PINNED_COMES_BACK = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether the allocator of pinned host memory takes what is freed off its count of bytes in use."""


# --- the CPU allocator's own count --------------------------------------------------------


class CpuAllocatorCount:
    """The bytes that torch's CPU allocator has handed out, of all threads, whoever holds them,
    since ``start``.

    c10 has such a count (``ProfiledCPUMemoryReporter``), kept while the flag
    ``caffe2_report_cpu_memory_usage`` is set, and no function to read it: ``start`` tries which
    word of the object counts a tensor to the byte. Each allocation then costs about 1.6 µs more,
    nearly all of it for a log line that is formatted and dropped, and the first release of memory
    from before prints one warning of c10's.
    """

    def __init__(self) -> None:
        self._flag: Any = None
        self._word: Any = None

    def start(self) -> str:
        """Begin to count; "" or the reason why it is not possible."""
        if self._word is not None:
            return ""
        library = os.path.join(torch.__path__[0], "lib", "libc10.so")
        try:
            c10 = ctypes.CDLL(library)
            reporter = c10["_ZN3c1025profiledCPUMemoryReporterEv"]
            flag = ctypes.c_bool.in_dll(c10, "FLAGS_caffe2_report_cpu_memory_usage")
        except (OSError, ValueError, AttributeError) as e:
            return f"this torch does not export the count ({e})"
        reporter.restype = ctypes.c_void_p
        base = reporter()
        words = [ctypes.c_size_t.from_address(base + 8 * i) for i in range(14)]
        had, flag.value = flag.value, True
        # Odd sizes that nothing else has: the word that follows both is the count.
        before = [w.value for w in words]
        first = torch.empty(1234567, dtype=torch.uint8)
        middle = [w.value for w in words]
        second = torch.empty(7654321, dtype=torch.uint8)
        after = [w.value for w in words]
        found = [
            word
            for word, *at in zip(words, before, middle, after, strict=True)
            if (at[1] - at[0], at[2] - at[1]) == (1234567, 7654321)
        ]
        del first, second
        if len(found) != 1:
            flag.value = had
            return "the count is not where it is in the versions of torch that were tried"
        self._flag, self._word = flag, found[0]
        return ""

    def stop(self) -> None:
        if self._flag is not None:
            self._flag.value = False
        self._flag = self._word = None

    def allocated(self) -> int | None:
        return int(self._word.value) if self._word is not None else None


# --- operators ----------------------------------------------------------------------------

Shapes = tuple[tuple[int, ...], ...]


class HostEvent(NamedTuple):
    """Describes what ran on the host. ``kernels_ns`` is device time of the kernels that it launched
    itself; an ``asynchronous`` one ended on another thread."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    shapes: Shapes = ()
    kernels_ns: int = 0
    asynchronous: bool = False


class MemoryEvent(NamedTuple):
    """An allocation, or, with negative bytes, a release."""

    time_ns: int
    nbytes: int
    on_host: bool


def kineto_profile(*, device: bool, shapes: bool, memory: bool) -> Any:
    """A ``torch.profiler.profile`` without stacks and without Python functions."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=kinds, record_shapes=shapes, profile_memory=memory)


def operator_events(profile: Any) -> tuple[list[HostEvent], list[MemoryEvent]]:
    """Returns what ran on the host in a finished profile, and its allocations in order of time.
    Kernels and calls of the device's runtime are linked to the event that launched them by its
    number."""
    events: list[tuple[int, HostEvent]] = []
    runtime: list[tuple[int, HostEvent]] = []
    kernels: dict[int, int] = {}
    memory: list[MemoryEvent] = []
    for e in profile.profiler.kineto_results.events():
        name, start, device = e.name(), e.start_ns(), e.device_type()
        if name == "[memory]":
            if device in _HOST_TYPES or device in _DEVICE_TYPES:
                memory.append(MemoryEvent(start, e.nbytes(), device in _HOST_TYPES))
            continue
        if name in _NOT_CALLS or e.is_hidden_event():
            continue
        launcher, end = e.linked_correlation_id(), e.end_ns()
        if device != DeviceType.CPU:
            kernels[launcher] = kernels.get(launcher, 0) + end - start
            continue
        thread = e.start_thread_id()
        hops = e.is_async() or thread != e.end_thread_id()
        event = HostEvent(name, thread, start, end, as_shapes(e.shapes()), 0, hops)
        if launcher:
            runtime.append((launcher, event))
        else:
            events.append((e.correlation_id(), event))
    threads = {number: e.thread for number, e in events if not e.asynchronous}
    memory.sort(key=lambda m: m.time_ns)
    return [
        *(e._replace(kernels_ns=kernels[n]) if n in kernels else e for n, e in events),
        *(e._replace(thread=threads.get(n, e.thread)) for n, e in runtime),
    ], memory


_HOST_TYPES = frozenset({DeviceType.CPU, DeviceType.MKLDNN, DeviceType.IDEEP})
_DEVICE_TYPES = frozenset({DeviceType.CUDA, DeviceType.PrivateUse1, DeviceType.HIP, DeviceType.XPU})
_NOT_CALLS = frozenset(
    {
        "[OutOfMemory]",
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
"""What torch's own statistics leave out."""


def as_shapes(shapes: Any) -> Shapes:
    """Input shapes as tuples; () for an input that has none, or that is a list of tensors."""
    return tuple(
        tuple(s) if all(isinstance(n, int) for n in s) else ()
        for s in shapes or ()
        if s is not None
    )


def profiling() -> bool:
    return bool(torch._C._autograd._profiler_enabled())

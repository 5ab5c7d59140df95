"""Everything private of torch that the tracker touches. Same in torch 2.11 to 2.15."""

from __future__ import annotations

import functools
from typing import Any

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


# --- operators ----------------------------------------------------------------------------


def ran_on_host(average: Any) -> bool:
    """Tells whether an entry of ``key_averages()`` is of the host: the others are kernels."""
    return bool(average.device_type == DeviceType.CPU)


def profiling() -> bool:
    return bool(torch._C._autograd._profiler_enabled())

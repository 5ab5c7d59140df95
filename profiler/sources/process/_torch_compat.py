"""Everything private of torch that the tracker touches. Same in torch 2.11 to 2.15."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def storage_address(tensor: torch.Tensor) -> int:
    """Address of the tensor's StorageImpl, without a Python object for the storage; raises whatever
    where it has none (sparse, opaque, batched)."""
    address: int = torch._C._storage_address(tensor)  # type: ignore[attr-defined]
    return address


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor is made of others, which count themselves."""
    return bool(is_traceable_wrapper_subclass(tensor))


def ran_on_host(average: Any) -> bool:
    """Tells whether an entry of ``key_averages()`` is of the host: the others are kernels."""
    return bool(average.device_type == DeviceType.CPU)


def profiling() -> bool:
    return bool(torch._C._autograd._profiler_enabled())

"""Tensors of the CPU on the memory of the device, and the state in which the CPU's kernels run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch

CPU = torch.device("cpu")
_empty = torch.empty
"""torch's own function: a program may replace ``torch.empty`` to make tensors elsewhere."""


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU on the same memory, which it does not keep alive.

    A tensor of the CPU is itself, unless it is an inference tensor, which may be written to in that
    mode alone. Raises NotImplementedError for a tensor of the device that is not strided.
    """
    if tensor.device.type != "cuda":
        if tensor.is_inference() and tensor.is_cpu and tensor.layout == torch.strided:
            fresh = _empty(0, dtype=tensor.dtype)
            own, offset = tensor.untyped_storage(), tensor.storage_offset()
            return fresh.set_(own, offset, tensor.size(), tensor.stride())
        return tensor
    if tensor.layout != torch.strided:
        raise NotImplementedError("sparse")
    size, stride = tensor.size(), tensor.stride()
    if tensor.numel() == 0:
        return torch.empty_strided(size, stride, dtype=tensor.dtype, device=CPU)
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    nbytes = (1 + last) * tensor.dtype.itemsize
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), CPU, nbytes)
    result = _empty(0, dtype=tensor.dtype, device=CPU).set_(storage, 0, size, stride)
    if tensor.is_conj():
        result = torch._conj(result)
    if tensor.is_neg():
        result = torch._neg_view(result)
    return result


def to_cpu(x: Any) -> Any:
    """An argument of an operator for the CPU: tensors as aliases, and the CPU for a device."""
    if isinstance(x, torch.Tensor):
        return alias(x)
    return CPU if isinstance(x, torch.device) else x


def on_device(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """New memory of a device in the shape of a tensor of the CPU."""
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=torch.device("cuda", device)
    )


def device_of(leaves: Sequence[Any]) -> int | None:
    """The number of the device that the first tensor of a device is on, if there is one."""
    tensors = (x for x in leaves if isinstance(x, torch.Tensor) and x.is_cuda)
    return next((x.get_device() for x in tensors), None)


class Quiet:
    """A context in which kernels of the CPU run without autograd, modes and inference tensors."""

    _GUARDS = (
        functools.partial(torch.inference_mode, False),
        torch.no_grad,
        torch._C.DisableTorchFunction,
        torch._C._DisableTorchDispatch,
        torch._C._DisableFuncTorch,
    )

    def __enter__(self) -> None:
        # Each is made when those before it act: some act when they are made, and the first one
        # restores the whole state of the dispatcher.
        self._entered: list[Any] = []
        for make in self._GUARDS:
            guard: Any = make()
            guard.__enter__()
            self._entered.append(guard)

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._entered):
            guard.__exit__(*error)


def wrap_numbers(tensor_places: Sequence[int], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for a kernel in C++, of those that one in Python is given.

    Where an operator takes a tensor, a kernel in Python gets a wrapped number as a number; one in
    C++ wants a tensor, of the dtype that promotion comes to.

    Args:
        tensor_places: which of the arguments are tensors by the operator's schema.
    """
    numbers = [
        i for i in tensor_places if i < len(args) and isinstance(args[i], (int, float, complex))
    ]
    if not numbers:
        return args
    given = [args[i] for i in tensor_places if i < len(args) and args[i] is not None]
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    pairs = itertools.product(tensors or given, [args[i] for i in numbers])
    dtype = functools.reduce(torch.promote_types, [torch.result_type(t, n) for t, n in pairs])
    wrapped = list(args)
    for i in numbers:
        # Beyond the dtype's range it wraps around, as it does in C++.
        wrapped[i] = torch.tensor(wrapped[i], device=CPU).to(dtype)
    return tuple(wrapped)

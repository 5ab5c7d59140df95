"""Integers that compute, while everything else on the simulated device does not.

Note [Integers that compute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Without values a kernel does nothing, and what it would write reads as zero. For most programs that
decides nothing about memory; where tokens are sent somewhere it decides everything: a list of
experts is counted, sorted, compared, and each gets as many rows as were found for it. All of that
is done with integers and booleans, which are small beside activations. So they can be computed
alone: each eager operator whose tensors, arguments and results, are all of integers or booleans
runs as always (checks, allocations, launches that do nothing), and then once more on CPU tensors
over the device's memory. Whatever came from floating point numbers or from random ones is zero
there as before, but for what ``special`` makes of it.

Operators whose result's size is what they find (``nonzero``, ``unique``) are asked on the CPU
first. ``nonzero`` then runs with that answer in place of the number that it reads from the device,
so that its own temporary memory is taken; those of ``unique`` are made on the CPU alone.

Not computed: what is captured in a CUDA graph; kernels of Inductor and of the user; operators with
a tensor above ``MAX_BYTES``, which is said once.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import control
from .overrides import Kernel, wrap_kernels
from .values import operators

__all__ = ["MAX_BYTES", "compute_integers", "overwritten"]

MAX_BYTES = 1 << 30
"""Of a tensor that is computed: the host's memory is not the device's."""

_INTEGERS = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
}
_SIZED = (
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
)
_found = threading.local()

Special = Callable[[Any, tuple[Any, ...]], None]
"""Given what an operator returned and its arguments: writes to the results, by ``overwritten``."""


def compute_integers(special: Mapping[str, Special]) -> None:
    """Compute integers in this process from here on.

    Args:
        special: by name of an operator of aten: what to do after it ran, instead of computing it.
    """
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    wrappers = {}
    for name in sorted({n[6:] for n in registered if n.startswith("aten::")} | {"copy_"}):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        if name in special or _may_compute(name, op):
            wrappers[name] = functools.partial(_wrapped, name, op, special.get(name))
    wrap_kernels("aten", wrappers)
    control.on_host_read(_read)


def overwritten(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a tensor of the CPU to the device's memory of ``tensor``, as if a kernel had."""
    with operators._quiet():
        operators.alias(tensor).copy_(value)  # type: ignore[no-untyped-call]
    _note_written(tensor)


def _may_compute(name: str, op: Any) -> bool:
    """Whether the CPU knows what the device would have computed, and it is no view."""
    schema = op._schema
    if operators.SKIP.match(name) or any(a.name == "generator" for a in schema.arguments):
        return False
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
        return False
    writes = any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
    return writes or not any(r.alias_info for r in schema.returns)


def _wrapped(name: str, op: Any, special: Special | None, run: Kernel) -> Kernel:
    """A kernel for the device that computes integers."""
    schema = op._schema
    numbers = [
        i
        for i, a in enumerate(schema.arguments)
        if str(a.type) in ("Tensor", "Optional[Tensor]") and not a.kwarg_only
    ]
    fresh = [not r.alias_info for r in schema.returns]

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        args = operators._wrap(numbers, args)  # type: ignore[no-untyped-call]

        def original() -> Any:
            return run(keys, *args, **kwargs)

        if special is not None:
            result = original()
            special(result, args)
            return result
        device = _integers(args, kwargs)
        if device is None or _captures(device):
            return original()
        if name in _SIZED:
            return tree_map(lambda c: _on_device(c, device), _on_cpu(op, args, kwargs))
        if name.startswith("nonzero"):
            _found.count = len(_on_cpu(torch.ops.aten.nonzero.default, args[:1], {}))
            try:
                result = original()
            finally:
                _found.count = None
        else:
            result = original()
        _compute(op, args, kwargs, result, fresh)
        return result

    return kernel


def _integers(args: Any, kwargs: Any) -> int | None:
    """Number of the device, if all tensors are of integers and of a size to compute."""
    device = None
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor):
            if x.dtype not in _INTEGERS or x.layout != torch.strided:
                return None
            if x.is_cuda:
                device = x.get_device()
                if x.nbytes > MAX_BYTES:
                    _say_too_large(x.nbytes)
                    return None
    return device


def _compute(op: Any, args: Any, kwargs: Any, result: Any, fresh: list[bool]) -> None:
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [t for t in tree_leaves(outputs) if isinstance(t, torch.Tensor)]
    if any(t.dtype not in _INTEGERS or t.nbytes > MAX_BYTES for t in tensors):
        return
    if not any(t.is_cuda for t in tensors):
        return  # the host has it already
    computed = _on_cpu(op, args, kwargs)
    computed = list(computed) if isinstance(computed, (tuple, list)) else [computed]
    for i, (there, here) in enumerate(zip(outputs, computed, strict=True)):
        pairs = zip(tree_leaves(there), tree_leaves(here), strict=True)
        for t, c in pairs:
            if isinstance(t, torch.Tensor) and t.is_cuda and t.numel():
                if i < len(fresh) and fresh[i]:
                    overwritten(t, c)
                else:
                    _note_written(t)


def _on_cpu(op: Any, args: Any, kwargs: Any) -> Any:
    """What the CPU's kernel makes of the device's memory; it writes there where ``op`` does."""
    with operators._quiet():
        args, kwargs = tree_map(operators._to_cpu, (args, kwargs))
        try:
            return op(*args, **kwargs)
        except RuntimeError as e:
            if "not implemented for" not in str(e):
                raise
        # A kernel of the CPU that has no integers (``histc``): they are exact in float64 to 2^53.
        wide = tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        result = op(*wide[0], **wide[1])
        return tree_map(lambda x: x.long() if isinstance(x, torch.Tensor) else x, result)


def _on_device(value: Any, device: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    where = torch.device("cuda", device)
    there = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=where)
    if value.numel():
        overwritten(there, value)
    return there


def _note_written(tensor: torch.Tensor) -> None:
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    control.written(tensor.data_ptr(), (last + 1) * tensor.element_size())


def _captures(device: int) -> bool:
    stream = torch._C._cuda_getCurrentRawStream(device)
    return bool(control.library().simgpu_capture_id(stream))


def _read(nbytes: int, address: int) -> None:
    """``nonzero`` reads how many there are, which no kernel has counted."""
    count = getattr(_found, "count", None)
    if count is not None:
        ctypes.memmove(address, count.to_bytes(nbytes, "little"), nbytes)


_said: list[int] = []


def _say_too_large(nbytes: int) -> None:
    if not _said:
        _said.append(nbytes)
        print(
            f"memprof: integers of {nbytes:,} bytes are too many to compute; they read as zero",
            file=sys.stderr,
        )

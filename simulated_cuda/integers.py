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

Kernels of torch call other operators. What these write to an argument that the outer one writes to
is taken back before that is computed, or an ``add_`` would add twice. Where the CPU refuses what
the device would do (an index that only zeros make), the result stays zero.

Not computed: what is captured in a CUDA graph; kernels of Inductor and of the user; operators with
a tensor above ``MAX_BYTES``, which is said once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import control
from .overrides import Kernel, wrap_kernels
from .values import operators
from .values.aliasing import Quiet, alias, on_device, to_cpu, wrap_numbers

__all__ = ["INTEGERS", "MAX_BYTES", "compute_integers", "contents", "overwritten"]

MAX_BYTES = 1 << 30
"""Of a tensor that is computed: the host's memory is not the device's."""

INTEGERS = {
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
        special: by name of an operator of aten: what to do after it ran, where not all its tensors
            are of integers.
    """
    wrappers = {}
    for name in operators.device_operators():
        op = operators.operator(name)
        if name in special or _may_compute(name, op):
            wrappers[name] = functools.partial(_wrapped, name, op, special.get(name))
    wrap_kernels("aten", wrappers)
    control.on_host_read(_read)


def overwritten(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a tensor of the CPU to the device's memory of ``tensor``, as if a kernel had."""
    with Quiet():
        alias(tensor).copy_(value)
    _note_written(tensor)


def _may_compute(name: str, op: Any) -> bool:
    """Whether the CPU knows what the device would have computed, and it is no view."""
    schema = op._schema
    if operators.SKIP.match(name) or any(a.name == "generator" for a in schema.arguments):
        return False
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
        return False
    return operators.writes(schema) or not any(r.alias_info for r in schema.returns)


def _wrapped(name: str, op: Any, special: Special | None, run: Kernel) -> Kernel:
    """A kernel for the device that computes integers."""
    schema = op._schema
    places = operators.tensor_places(schema)
    written = {
        a.name if a.kwarg_only else i
        for i, a in enumerate(schema.arguments)
        if a.alias_info and a.alias_info.is_write
    }

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        args = wrap_numbers(places, args)
        device = _integers(args, kwargs)
        if device is None or _captures(device):
            result = run(keys, *args, **kwargs)
            if special is not None and not torch.cuda.is_current_stream_capturing():
                special(result, args)
            return result
        changed = [x for i, x in enumerate(args) if i in written]
        changed += [x for key, x in kwargs.items() if key in written]
        changed = [t for t in tree_leaves(changed) if isinstance(t, torch.Tensor) and t.is_cuda]
        found: int | None = None
        try:
            if name in _SIZED:
                return tree_map(lambda c: _on_device(c, device), _on_cpu(op, args, kwargs))
            if name.startswith("nonzero"):
                found = len(_on_cpu(torch.ops.aten.nonzero.default, args[:1], {}))
        except Exception as e:
            _say_not_computed(name, e)
        before = [(t, t.shape, contents(t)) for t in changed]
        with _counted(found):
            result = run(keys, *args, **kwargs)
        # Operators that it is made of may have computed: what they wrote is not to count twice.
        for t, shape, content in before:
            if t.shape == shape:
                overwritten(t, content)
        return _compute(name, op, args, kwargs, result, changed)

    return kernel


def _integers(args: Any, kwargs: Any) -> int | None:
    """Number of the device, if all tensors are of integers and of a size to compute."""
    device = None
    for x in tree_leaves((args, kwargs)):
        if isinstance(x, torch.Tensor):
            if x.dtype not in INTEGERS or x.layout != torch.strided:
                return None
            if x.is_cuda:
                device = x.get_device()
                if x.nbytes > MAX_BYTES:
                    _say_once(f"integers of {x.nbytes:,} bytes are too many to compute")
                    return None
    return device


def _compute(
    name: str, op: Any, args: Any, kwargs: Any, result: Any, changed: list[torch.Tensor]
) -> Any:
    """What the operator returns, with its integers in place: ``result`` but for numbers."""
    there = tree_leaves(result)
    tensors = [t for t in there if isinstance(t, torch.Tensor)]
    if any(t.dtype not in INTEGERS or t.nbytes > MAX_BYTES for t in tensors):
        return result
    is_number = isinstance(result, (bool, int))
    if not is_number and not changed and not any(t.is_cuda for t in tensors):
        return result  # the host has it already
    try:
        here = _on_cpu(op, args, kwargs)
    except Exception as e:
        # The device would have computed something of what is zero here alone.
        _say_not_computed(name, e)
        return result
    for t in changed:
        _note_written(t)
    if is_number:
        return here
    known = {id(t) for t in changed}
    for t, c in zip(there, tree_leaves(here), strict=True):
        # Another shape has a result whose size somebody pretends.
        new = isinstance(t, torch.Tensor) and t.is_cuda and t.numel() and id(t) not in known
        if new and t.shape == c.shape:
            overwritten(t, c)
    return result


def _on_cpu(op: Any, args: Any, kwargs: Any) -> Any:
    """What the CPU's kernel makes of the device's memory; it writes there where ``op`` does."""
    with Quiet():
        return operators.run_on_cpu(op, *tree_map(to_cpu, (args, kwargs)))


def _on_device(value: Any, device: int) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    there = on_device(value, device)
    if value.numel():
        overwritten(there, value)
    return there


def contents(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU of what the device has for ``tensor``; no look of the program's."""
    with Quiet():
        return alias(tensor).clone()


def _note_written(tensor: torch.Tensor) -> None:
    if not tensor.numel():
        return
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    control.written(tensor.data_ptr(), (last + 1) * tensor.element_size())


def _captures(device: int) -> bool:
    stream = torch._C._cuda_getCurrentRawStream(device)
    return bool(control.library().simgpu_capture_id(stream))


@contextlib.contextmanager
def _counted(found: int | None) -> Iterator[None]:
    """What this thread reads from the device is this number. None changes nothing: ``nonzero`` is
    made of other operators."""
    if found is None:
        yield
        return
    _found.count = found
    try:
        yield
    finally:
        _found.count = None


def _read(nbytes: int, address: int) -> None:
    """``nonzero`` reads how many there are, which no kernel has counted."""
    count = getattr(_found, "count", None)
    if count is not None:
        ctypes.memmove(address, count.to_bytes(nbytes, "little"), nbytes)


_said: set[str] = set()


def _say_not_computed(name: str, error: Exception) -> None:
    _say_once(f"{name} of integers is not computed: {type(error).__name__}: {error}")


def _say_once(why: str) -> None:
    if why not in _said:
        _said.add(why)
        print(f"memprof: {why}; they read as zero", file=sys.stderr)

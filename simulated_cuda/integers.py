"""Operators that compute on what is known, while everything else on the simulated device does not.

Note [What the host knows]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Without values a kernel does nothing, and what it would write reads as zero. But what the program
itself put on the device is known: copies of the host's tensors, constants, the gradient that a
backward begins with. An eager operator all of whose arguments are known and small runs as always
(checks, allocations, launches that do nothing), and then once more on CPU tensors over the device's
memory: its results are known too. What any other operator writes to, or returns, is not, and reads
as zero: the device keeps count of that by address (core_contents.cpp), as it does for kernels of
Triton and for those of extensions, whose pointers it sees. Random numbers are never known.

Note [Integers that compute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
For most programs values decide nothing about memory; where tokens are sent somewhere they decide
everything: a list of experts is counted, sorted, compared, and each gets as many rows as were found
for it. All of that is done with integers and booleans, which are small beside activations. So they
can be computed, known or not: each eager operator whose tensors, arguments and results, are all of
integers or booleans. Whatever came from floating point numbers or from random ones is zero there as
before, but for what ``special`` makes of it.

Operators whose result's size is what they find (``nonzero``, ``unique``) are asked on the CPU
first. ``nonzero`` then runs with that answer in place of the number that it reads from the device,
so that its own temporary memory is taken; those of ``unique`` are made on the CPU alone.

Kernels of torch call other operators. What these write to an argument that the outer one writes to
is taken back before that is computed, or an ``add_`` would add twice. Where the CPU refuses what
the device would do (an index that only zeros make), the result stays zero.

Not computed: what is captured in a CUDA graph; kernels of Inductor and of the user; operators with
a tensor above ``SMALL``, or of integers above ``MAX_BYTES``, which is said once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import control
from .overrides import Kernel, wrap_kernels
from .values import kernels, operators
from .values.aliasing import Quiet, alias, on_device, to_cpu, wrap_numbers

MAX_BYTES = 1 << 30
"""Most bytes of an integer tensor that is computed: the host's memory is not the device's."""
SMALL = 1 << 20
"""Most bytes of a known tensor that is computed with: a mask of a batch, no activation."""

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
_NUMBERS = ("equal",)
"""Operators that return what they read from the device."""
_REPLACES = ("copy_", "fill_.Scalar", "fill_.Tensor")
"""Operators that write to their first argument and do not read it."""
_UPDATES = ("_amp_update_scale_",)
"""Operators that take what is unknown for the zero that it reads as: a gradient scaler keeps its
scale, as the step that its program sees no reason to leave out would."""
_ALSO_WRITTEN = ("running_mean", "running_var")
"""Arguments that batch normalisation writes to, of which its schema says nothing."""
_DECIDES = {
    "bitwise_or": (True, {torch.bool}),
    "logical_or": (True, {torch.bool}),
    "bitwise_and": (False, INTEGERS),
    "logical_and": (False, INTEGERS),
}
"""Of operators with two arguments the value, and its types, that decides the result alone, whatever
the other argument is: generation ends at its greatest length, also where the tokens that would have
ended it are not known."""
_LEFT_ALONE = ("record_stream", "resize_", "set_", "zero_")
"""Operators that leave a tensor's elements as they are, whatever their schemas say, and one that
sets memory or calls ``fill_``."""
_HEAVY = re.compile(r".*(attention|backward|conv|dropout|embedding|loss|mm|norm|pool|softmax)")
"""Operators that no program decides anything by. Each that is left alone saves 5 µs a call."""
_BEGINS = re.compile(r"b?add.*mm|.*backward")
"""Heavy operators that copy or set to zero what they then add to."""
_KEPT = ("copy_", "_foreach_copy_", "linalg_", "_linalg_")
"""Prefixes of operators whose results stay as they are: copies of memory, of which the device
itself keeps count, and those that say by zeros that there was no error."""
_found = threading.local()

Special = Callable[[Any, tuple[Any, ...]], None]
"""Takes an operator's result and arguments, and writes to the result by ``overwritten``."""


def compute_known(special: Mapping[str, Special] | None = None) -> None:
    """Compute what is known in this process from here on, and, where ``special`` is given, all
    integers.

    Args:
        special: by name of an operator of aten: what to do after it ran, where not all its tensors
            are of integers.
    """
    wrappers = {}
    for name in operators.device_operators():
        op = operators.operator(name)
        left_alone = name.startswith(_LEFT_ALONE)
        useful = _written(op._schema) or (_may_compute(name, op) and not _HEAVY.match(name))
        if name in (special or ()) or (useful and not left_alone):
            wrappers[name] = functools.partial(_wrapped, name, op, special)
        elif _BEGINS.match(name):
            wrappers[name] = functools.partial(_unknown, op)
    wrap_kernels("aten", wrappers)
    kernels.tell_writes()
    control.on_host_read(_read)


def overwritten(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Write a tensor of the CPU to the device's memory of ``tensor``, as if a kernel had."""
    with Quiet():
        alias(tensor).copy_(value)
    _note_written(tensor)


def is_known(tensor: torch.Tensor) -> bool:
    """Tells whether the program put there what a strided tensor holds."""
    if not tensor.is_cuda or not tensor.numel():
        return True
    return control.known(tensor.data_ptr(), _extent(tensor))


def forget(tensors: Iterable[torch.Tensor]) -> None:
    """Say that something that computes nothing writes to tensors, on their current streams."""
    for t in tensors:
        if t.is_cuda and t.layout == torch.strided and t.numel():
            stream = torch._C._cuda_getCurrentRawStream(t.get_device())
            control.forget(stream, t.data_ptr(), _extent(t))


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to its last, both of them included."""
    if tensor.is_contiguous():
        return tensor.nbytes
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _written(schema: Any) -> set[int | str]:
    """The arguments that an operator writes to, by place or by name."""
    return {
        a.name if a.kwarg_only else i
        for i, a in enumerate(schema.arguments)
        if (a.alias_info and a.alias_info.is_write) or a.name in _ALSO_WRITTEN
    }


def _may_compute(name: str, op: Any) -> bool:
    """Tells whether the CPU knows what the device would have computed, and it is no view."""
    schema = op._schema
    if operators.SKIP.match(name) or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU"):
        return False
    return operators.writes(schema) or not any(r.alias_info for r in schema.returns)


def _unknown(op: Any, run: Kernel) -> Kernel:
    """A kernel for the device whose results nobody knows."""
    places = operators.tensor_places(op._schema)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        result = run(keys, *wrap_numbers(places, args), **kwargs)
        forget(_tensors(result if isinstance(result, (list, tuple)) else (result,)))
        return result

    return kernel


def _wrapped(name: str, op: Any, special: Mapping[str, Special] | None, run: Kernel) -> Kernel:
    """A kernel for the device that computes what is known."""
    places = operators.tensor_places(op._schema)
    written = _written(op._schema)
    replaced = {x for x in written if isinstance(x, str) or name in _REPLACES}
    may_compute = _may_compute(name, op)
    after = (special or {}).get(name)
    large = SMALL if special is None else MAX_BYTES
    decides = _DECIDES.get(name.partition(".")[0].rstrip("_"))

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        args = wrap_numbers(places, args)
        computes = known = False
        device: int | None = None
        # Most operators have a large tensor: they are told apart before all else.
        first = args[0] if args else None
        if may_compute and not (isinstance(first, torch.Tensor) and first.nbytes > large):
            given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            tensors = _tensors(given.values())
            read = (x for key, x in given.items() if key not in replaced)
            device = next((t.get_device() for t in tensors if t.is_cuda), None)
            known = (
                name in _UPDATES
                or _all_known(tensors, read)
                or (decides is not None and _is_decided(tensors[:2], *decides))
            )
            computes = (
                device is not None
                and (known or (special is not None and _integers(tensors)))
                and not torch.cuda.is_current_stream_capturing()
            )
        targets = (args[x] if isinstance(x, int) else kwargs.get(x) for x in written)
        changed = [t for t in _tensors(targets) if t.is_cuda]
        if not computes:
            forget(changed)  # First: what it copies is known.
            result = run(keys, *args, **kwargs)
            if not name.startswith(_KEPT):
                # It may have begun with a copy, or with zeros, or in a graph where others lay.
                made = result if isinstance(result, (list, tuple)) else (result,)
                forget([*changed, *_tensors(made)])
            if after is not None and not torch.cuda.is_current_stream_capturing():
                after(result, args)
            return result
        found: int | None = None
        try:
            if name in _SIZED:
                return tree_map(lambda c: _on_device(c, device), _on_cpu(op, args, kwargs))
            if name.startswith("nonzero"):
                found = len(_on_cpu(torch.ops.aten.nonzero.default, args[:1], {}))
            if name in _NUMBERS:
                found = _on_cpu(op, args, kwargs)
        except Exception as e:
            _say_not_computed(name, e)
        before = [(t, t.shape, contents(t)) for t in changed]
        with _counted(found):
            result = run(keys, *args, **kwargs)
        # Operators that it is made of may have computed: what they wrote is not to count twice.
        for t, shape, content in before:
            if t.shape == shape:
                overwritten(t, content)
        return _compute(name, op, args, kwargs, result, changed, known)

    return kernel


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among an operator's arguments, which may be lists of them."""
    found = []
    for x in values:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += [t for t in x if isinstance(t, torch.Tensor)]
    return found


def _all_known(tensors: list[torch.Tensor], read: Iterable[Any]) -> bool:
    """Tells whether an operator with these tensors can be computed from what it reads."""
    if any(t.layout != torch.strided or t.nbytes > SMALL for t in tensors):
        return False
    return all(map(is_known, _tensors(read)))


def _is_decided(tensors: list[torch.Tensor], value: bool, types: set[torch.dtype]) -> bool:
    """Tells whether one of two tensors of such types is known to have nothing but ``value``."""
    return all(t.dtype in types and t.nbytes <= SMALL for t in tensors) and any(
        is_known(t) and bool((contents(t) == value).all()) for t in tensors
    )


def _integers(tensors: list[torch.Tensor]) -> bool:
    """Tells whether all are of integers and of a size to compute."""
    if any(t.dtype not in INTEGERS or t.layout != torch.strided for t in tensors):
        return False
    most = max(t.nbytes for t in tensors)
    if most > MAX_BYTES:
        _say_once(f"integers of {most:,} bytes are too many to compute")
    return most <= MAX_BYTES


def _compute(
    name: str,
    op: Any,
    args: Any,
    kwargs: Any,
    result: Any,
    changed: list[torch.Tensor],
    known: bool,
) -> Any:
    """Compute ``result`` and ``changed`` on the CPU if they are small enough; return ``result``."""
    there = tree_leaves(result)
    tensors = [t for t in there if isinstance(t, torch.Tensor)]
    if not changed and not any(t.is_cuda for t in tensors):
        return result  # the host has it already
    most = SMALL if known else MAX_BYTES
    if any(t.nbytes > most or not (known or t.dtype in INTEGERS) for t in tensors):
        forget(changed)
        return result
    try:
        here = _on_cpu(op, args, kwargs)
    except Exception as e:
        # The device would have computed something of what is zero here alone.
        forget(changed)
        _say_not_computed(name, e)
        return result
    for t in changed:
        _note_written(t)
    done = {id(t) for t in changed}
    for t, c in zip(there, tree_leaves(here), strict=True):
        # Another shape has a result whose size somebody pretends.
        new = isinstance(t, torch.Tensor) and t.is_cuda and t.numel() and id(t) not in done
        if new and t.shape == c.shape:
            overwritten(t, c)
    return result


def _on_cpu(op: Any, args: Any, kwargs: Any) -> Any:
    """Run ``op``'s CPU kernel on the device's memory, which it writes where ``op`` does; return its
    result."""
    with Quiet():
        return operators.run_on_cpu(op, *tree_map(to_cpu, (args, kwargs)))


def _on_device(value: Any, device: int | None) -> Any:
    if not isinstance(value, torch.Tensor) or device is None:
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
    """Note each piece of a tensor as written: nobody knows what lies between the pieces."""
    if not tensor.numel():
        return
    size, places = tensor.element_size(), [tensor.data_ptr()]
    for step, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        nbytes = step * tensor.element_size()
        if nbytes == size:
            size *= n
        elif step:
            places = [place + i * nbytes for place in places for i in range(n)]
    for place in places:
        control.written(place, size)


@contextlib.contextmanager
def _counted(found: int | None) -> Iterator[None]:
    """Within it, this thread reads the number ``found`` from the device. None changes nothing:
    ``nonzero`` is made of other operators."""
    if found is None:
        yield
        return
    _found.count = found
    try:
        yield
    finally:
        _found.count = None


def _read(nbytes: int, address: int, known: bool) -> bool:
    """Write the count that ``nonzero`` reads, which no kernel made; return whether it is known."""
    count = getattr(_found, "count", None)
    if count is not None:
        ctypes.memmove(address, int(count).to_bytes(nbytes, "little"), nbytes)
    return known or count is not None


_said: set[str] = set()


def _say_not_computed(name: str, error: Exception) -> None:
    _say_once(f"{name} is not computed: {type(error).__name__}: {error}")


def _say_once(why: str) -> None:
    if why not in _said:
        _said.add(why)
        print(f"memprof: {why}; they read as zero", file=sys.stderr)

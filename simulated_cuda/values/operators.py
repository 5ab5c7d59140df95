"""Values mode: kernels really compute.

Triton's kernels run as C (`kernels`). Every aten operator with a CUDA kernel first runs as always
(checks, allocations, launches that do nothing); then its CPU kernel computes the result on CPU
tensors that alias the device memory: at once, or as a graph node at every launch while the stream
is being captured. Random numbers: Note [Random numbers of the simulated device].
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..after_import import after_import
from ..control import library
from ..overrides import kernel_of
from . import kernels, random_numbers
from .aliasing import Quiet, alias, device_of, on_device, to_cpu, wrap_numbers
from .kernels import say_missing
from .own_kernels import OWN_KERNELS, REPLACEMENTS

_DATA_DEPENDENT = {
    "_unique",
    "_unique2",
    "bincount",
    "equal",
    "masked_select",
    "masked_select.out",
    "nonzero",
    "nonzero.out",
    "repeat_interleave.Tensor",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
"""The shape or the Python value of the result depends on data: the CPU kernel decides, also when
another operator calls."""
SKIP = re.compile(
    r"(empty|set_|resize|_resize|_efficientzero|record_stream|is_set_to|_local_scalar_dense"
    r"|_fused_sdp_choice|_use_|_nested|_cudnn|cudnn_|miopen|_cslt|_validate|is_pinned|_pin"
    r"|_has_same|_sparse|_to_sparse|_indices|_values|.*sparse|is_coalesced|_coalesce"
    r"|_transform_bias|_c10d|_record)"
)
"""Operators that compute no values, and those of libraries and layouts that are left alone."""
_NO_KERNEL = re.compile(
    r"not implemented for '?\"?(?P<type>Half|BFloat16|Byte|Char|Short|Int|Long|Bool)"
    r"|not supported.*(Half|BFloat16)|for 'Half'"
)
_INTEGERS = {
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Bool": torch.bool,
}
"""Integer dtypes by their names in messages that match ``_NO_KERNEL``."""
_NUMBERS = (int, float, complex)
_ASSERT = 710  # cudaErrorAssert

_device = library()
_thread = threading.local()


# ---- operations of a stream that are Python functions

_functions: dict[int, Callable[[], None]] = {}
_numbers = itertools.count(1)


def _call(number: int, replay: int) -> int:
    """Run a function for the device; returns 0 or CUDA's error."""
    try:
        _functions[number]()
    except Exception:
        traceback.print_exc()
        return _ASSERT
    return 0


_call_for_device = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_int)(_call)


def _submit(device: int, function: Callable[[], None]) -> None:
    """Run a function now, or at each launch of the graph that the current stream captures."""
    stream = torch._C._cuda_getCurrentRawStream(device)
    if not _device.simgpu_capture_id(stream):
        function()
        return
    dropped = (ctypes.c_uint64 * 64)()
    for i in range(_device.simgpu_dropped(dropped, ctypes.c_size_t(64))):
        _functions.pop(dropped[i], None)
    number = next(_numbers)
    _functions[number] = function
    _device.simgpu_submit_python(stream, number)


# ---- one operator


def tensor_places(schema: Any) -> list[int]:
    """Positions of an operator's arguments that are tensors."""
    return [
        i
        for i, a in enumerate(schema.arguments)
        if str(a.type) in ("Tensor", "Optional[Tensor]") and not a.kwarg_only
    ]


def writes(schema: Any) -> bool:
    """Tells whether an operator writes to one of its arguments."""
    return any(a.alias_info and a.alias_info.is_write for a in schema.arguments)


def operator(name: str) -> Any:
    """An operator of aten by its name: ``add.Tensor``."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def device_operators() -> Iterator[str]:
    """The names of all operators of aten that have a kernel for CUDA, sorted; ``copy_`` is one."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    prefix = "aten::"
    names = {name[len(prefix) :] for name in registered if name.startswith(prefix)}
    yield from sorted(names | {"copy_"})


class _Operator:
    """An operator's kernel for the device, and then what computes its result."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.op = operator(name)
        schema = self.op._schema
        self.arguments = [a.name for a in schema.arguments]
        self.tensor_places = tensor_places(schema)
        self.writes = writes(schema)
        self.is_random = "generator" in self.arguments
        self.fresh = [not r.alias_info for r in schema.returns]
        """Whether each result is new, not an argument that was written to."""
        self.kernel = kernel_of("aten::" + name)
        self.own_kernel = OWN_KERNELS.get(name)
        self.on_cpu = REPLACEMENTS.get(name, self.op)
        has = torch._C._dispatch_has_computed_kernel_for_dispatch_key
        self.computes = (
            self.own_kernel is not None or self.on_cpu is not self.op or has("aten::" + name, "CPU")
        )

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_thread, "inside", False):
            # Called by another operator, whose result is computed as a whole.
            return self.kernel(keys, *wrap_numbers(self.tensor_places, args), **kwargs)
        leaves = tree_leaves((args, kwargs))
        device = device_of(leaves)
        random: Callable[[], torch.Generator] | None = None
        if device is not None and (self.is_random or self.own_kernel is not None):
            shapes = [(tuple(x.shape), x.dtype) for x in leaves if isinstance(x, torch.Tensor)]
            generator = self._by_name(args, kwargs).get("generator")
            random, drawn = random_numbers.source(device, generator, (self.name, *shapes))
        result = self._run(keys, args, kwargs, device)
        if random is not None:
            drawn()
        if device is None:
            device = device_of(tree_leaves((result,)))
        if device is None:
            return result
        with Quiet():
            if not self.computes:
                say_missing("aten." + self.name)
                _submit(device, functools.partial(_say_unknown, self._targets(result)))
                return result
            try:
                cpu_args, cpu_kwargs = tree_map(to_cpu, args), tree_map(to_cpu, kwargs)
            except NotImplementedError:
                say_missing("aten." + self.name + " (not strided)")
                return result
            targets = self._targets(result)
            on_cpu = self.on_cpu
            if any(isinstance(cpu_args[i], _NUMBERS) for i in self.tensor_places if i < len(args)):
                # What C++ made a tensor of: the CPU has another overload for it.
                packet, _, _ = self.name.partition(".")
                found = torch._C._jit_resolve_packet(f"aten::{packet}", *cpu_args, **cpu_kwargs)
                on_cpu = operator(f"{packet}.{found}")
        single = isinstance(result, torch.Tensor)
        _submit(device, self._computation(on_cpu, random, cpu_args, cpu_kwargs, targets, single))
        return result

    def _run(
        self, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: int | None
    ) -> Any:
        """The kernel for the device; kernels that it launches compute nothing themselves."""
        _thread.inside = True
        _device.simgpu_inside(1)
        try:
            return self.kernel(keys, *wrap_numbers(self.tensor_places, args), **kwargs)
        except RuntimeError as e:
            if "cudnn" not in str(e).lower() or self.writes:
                raise
            # cuDNN is switched off: the CPU says which shapes there would be.
            with Quiet():
                made = self.on_cpu(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
            assert device is not None
            where = device
            return tree_map(
                lambda x: on_device(x, where) if isinstance(x, torch.Tensor) else x, made
            )
        finally:
            _thread.inside = False
            _device.simgpu_inside(0)

    def _targets(self, result: Any) -> list[Any]:
        """CPU aliases of the results, to which values are assigned; None for an argument."""
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        return [
            tree_map(to_cpu, x) if i >= len(self.fresh) or self.fresh[i] else None
            for i, x in enumerate(results)
        ]

    def _computation(
        self,
        on_cpu: Callable[..., Any],
        random: Callable[[], torch.Generator] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        targets: Sequence[Any],
        single: bool,
    ) -> Callable[[], None]:
        """Return a function that computes the result, on aliases.

        It must hold no tensor of the device: a graph node does not keep memory alive.
        """
        if self.is_random:
            place = self.arguments.index("generator")
            args = args[:place]
            kwargs.pop("generator", None)

        def compute() -> None:
            with Quiet():
                if self.own_kernel is not None:
                    assert random is not None
                    self.own_kernel(random, self._by_name(args, kwargs), targets)
                    return
                given = kwargs
                if self.is_random:
                    assert random is not None
                    given = {**kwargs, "generator": random()}
                computed = run_on_cpu(on_cpu, args, given)
                values = [computed] if single else () if computed is None else computed
                for target, value in zip(targets, values, strict=False):
                    if target is not None:
                        _assign(tree_leaves(target), tree_leaves(value))

        return compute

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.arguments, args, strict=False)), **kwargs}

    def decided_by_cpu(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """The operator, where its result's shape depends on data."""
        device = device_of(tree_leaves((args, kwargs)))
        if device is None or _device.simgpu_capture_id(torch._C._cuda_getCurrentRawStream(device)):
            return self.kernel(keys, *args, **kwargs)
        where = device
        with Quiet():
            result = self.op(
                *tree_map(to_cpu, args), **{k: to_cpu(x) for k, x in kwargs.items() if k != "out"}
            )
        if not isinstance(result, (torch.Tensor, tuple, list)):
            return result

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            there = on_device(tensor, where)
            with Quiet():
                alias(there).copy_(tensor)
            return there

        result = tree_map(moved, result)
        if "out" in kwargs:
            out = kwargs["out"]
            out.resize_(result.shape)
            with Quiet():
                alias(out).copy_(alias(result))
            return out
        return result


def run_on_cpu(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The CPU's kernel; where it has none for half precision in float32, for integers in float64.

    Integers are exact in float64 up to 2^53.
    """
    try:
        return function(*args, **kwargs)
    except RuntimeError as e:
        refused = _NO_KERNEL.search(str(e))
        if refused is None:
            raise
    integer = _INTEGERS.get(refused["type"])
    narrow = (torch.float16, torch.bfloat16) if integer is None else (integer,)
    wider = torch.float32 if integer is None else torch.float64
    widened: list[tuple[torch.Tensor, torch.Tensor]] = []

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in narrow:
            wide = x.to(wider)
            widened.append((x, wide))
            return wide
        return wider if isinstance(x, torch.dtype) and x in narrow else x

    result = function(*tree_map(widen, args), **tree_map(widen, kwargs))
    if isinstance(function, torch._ops.OpOverload) and writes(function._schema):
        for tensor, wide in widened:
            tensor.copy_(wide)
    return result


def _say_unknown(targets: Sequence[Any]) -> None:
    """Fill ``targets`` with NaN: old content differs from run to run, and looks like a result."""
    with Quiet():
        for target in tree_leaves(targets):
            if isinstance(target, torch.Tensor) and target.is_floating_point():
                target.fill_(math.nan)


def _assign(targets: Sequence[Any], values: Sequence[Any]) -> None:
    for target, value in zip(targets, values, strict=False):
        if not isinstance(target, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        if target is value or not value.numel():
            continue
        if target.shape == value.shape:
            target.copy_(value)
        elif target.numel() == value.numel():
            target.copy_(value.reshape(target.shape))


# ---- all of them

_registrations: list[Any] = []
"""The library of kernels, which live as long as it does."""


def enable() -> None:
    """Make kernels compute in this process from here on; called again, it does nothing.

    Call it before the first compilation: Inductor's cache directory is another one, since without
    values what it folds into constants is garbage.
    """
    if _registrations:
        return
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder + "-values"
    registrations: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _registrations.append(registrations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        for name in device_operators():
            if name in REPLACEMENTS or not SKIP.match(name):
                _register(registrations, name)
    kernels.hook_launchers()
    _device.simgpu_values(kernels.resolve, _call_for_device)
    # Dynamo must not compile these frames.
    after_import("torch._dynamo.trace_rules", lambda rules: rules.add(__package__))
    random_numbers.hook_graphs()
    # Its kernels compute nothing; convolutions and attention take torch's own.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)


def _register(registrations: Any, name: str) -> None:
    schema = operator(name)._schema
    is_view = any(r.alias_info and not r.alias_info.is_write for r in schema.returns)
    if is_view and not writes(schema):
        return
    made = _Operator(name)
    kernel = made.decided_by_cpu if name in _DATA_DEPENDENT else made
    registrations.impl(name, kernel, "CUDA", with_keyset=True)

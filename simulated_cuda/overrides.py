"""Wrapping operators' kernels for the device.

Note [Backwards at exit]
~~~~~~~~~~~~~~~~~~~~~~~~
A thread of autograd's wakes the one that called ``backward()`` before it lets go of tensors that a
kernel in Python has seen, for which it takes Python's lock. If Python ends meanwhile, CPython ends
the thread inside of a destructor, and C++ aborts the process. So the process waits for these
threads before it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .after_import import after_import

Kernel = Callable[..., Any]
"""Called with the dispatch keys, then the operator's arguments."""


def wrap_kernels(namespace: str, wrappers: Mapping[str, Callable[[Kernel], Kernel]]) -> None:
    """Replace kernels for CUDA, in this process from here on.

    An operator can be wrapped again: the last wrapper is the outermost.

    Args:
        namespace: of the operators: ``aten``.
        wrappers: by operator and overload (``nonzero.out``): given its kernel, the one that takes
            its place.
    """
    if not _chains:
        after_import("torch._dynamo.trace_rules", _leave_alone)
        atexit.register(_wait_for_autograd)
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        for name, wrapper in wrappers.items():
            full = f"{namespace}::{name}"
            chain = _chains.get(full)
            if chain is not None:  # torch takes one kernel in Python
                chain.kernel = wrapper(chain.kernel)
                continue
            chain = _chains[full] = _Chain(wrapper(kernel_of(full)))
            library.impl(name, chain, "CUDA", with_keyset=True)


class _Chain:
    """Calls the outermost of an operator's wrappers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kernel(*args, **kwargs)


_chains: dict[str, _Chain] = {}
_libraries: list[Any] = []
"""Libraries of the replaced kernels, which stay replaced as long as these live."""


def _leave_alone(trace_rules: Any) -> None:
    """Have Dynamo compile no frames that an operator, or a copy to the host, has called."""
    for package in ("memprof.simulated_cuda", "memprof.what_if.simulate", "memprof.profiler"):
        trace_rules.add(package)


def _wait_for_autograd() -> None:
    """Return when autograd's threads have let go of all that came before: each serves its queue in
    order, and an empty tensor's backward comes last."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    for device in range(torch.cuda.device_count()):
        # Elsewhere nothing ran, and a tensor would start the device.
        if torch.cuda.max_memory_reserved(device):
            # Not in a fork, where such threads are missing.
            with contextlib.suppress(Exception):
                empty = torch.empty(0, device=f"cuda:{device}", requires_grad=True)
                # The thread lets go of this one late as well. A tensor that only its Python object
                # owns then asks for Python's lock; the base of a view that is never freed has
                # another owner.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(empty.view(0)))
                torch.autograd.grad(empty, empty, empty)


def kernel_of(name: str) -> Kernel:
    """The kernel for CUDA of an operator by its full name, such as ``aten::nonzero.out``."""
    if name in _OF_A_NUMBER:
        return functools.partial(_with_tensor, _OF_A_NUMBER[name])
    kernel: Kernel = torch.library.get_kernel(name, "CUDA").call_boxed
    return kernel


_OF_A_NUMBER: Mapping[str, Kernel] = {
    "aten::isin.Scalar_Tensor": torch.isin,
    "aten::isin.Scalar_Tensor_out": torch.isin,
    "aten::pow.Scalar": torch.pow,
    "aten::pow.Scalar_out": torch.pow,
}
"""Torch's make a number on the device of their first argument, which no kernel in Python can be
given."""


def _with_tensor(
    function: Kernel, keys: Any, number: complex, tensor: torch.Tensor, **kwargs: Any
) -> Any:
    kind = torch.result_type(tensor, number)
    # Beyond the dtype's range it wraps around, as it does in C++.
    fits = torch.tensor(number).to(kind).item()
    return function(torch.full((), fits, dtype=kind, device=tensor.device), tensor, **kwargs)

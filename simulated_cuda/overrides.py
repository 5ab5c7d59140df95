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
import functools
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
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
    """Return when autograd's threads sleep, as they do once they have let go of all that came
    before; at most after a second."""
    for _ in range(500):
        # Without Python's lock, which a thread that sleeps may be waiting for.
        time.sleep(0.002)
        if not any(map(_is_busy, Path("/proc/self/task").glob("*/stat"))):
            return


def _is_busy(stat: Path) -> bool:
    """Tells whether a thread of autograd's is running, or would if it were let."""
    try:
        name, _, rest = stat.read_text().partition(")")
    except OSError:  # it has ended
        return False
    return "(pt_autograd" in name and rest.split()[0] != "S"


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

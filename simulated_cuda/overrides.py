"""Wrapping operators' kernels for the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["kernel_of", "wrap_kernels"]

Kernel = Callable[..., Any]
"""Called with the dispatch keys, then the operator's arguments."""


def wrap_kernels(namespace: str, wrappers: Mapping[str, Callable[[Kernel], Kernel]]) -> None:
    """Replace kernels for CUDA, in this process from here on.

    Args:
        namespace: of the operators: ``aten``.
        wrappers: by operator and overload (``nonzero.out``): given its kernel, the one that takes
            its place.
    """
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        for name, wrapper in wrappers.items():
            kernel = kernel_of(f"{namespace}::{name}")
            library.impl(name, wrapper(kernel), "CUDA", with_keyset=True)


def kernel_of(name: str) -> Kernel:
    """The kernel for CUDA of ``aten::pow.Scalar``, called with dispatch keys and arguments."""
    if name == "aten::pow.Scalar":
        # Torch's makes a number on the device of it, which no kernel in Python can be given.
        return _power
    kernel: Kernel = torch.library.get_kernel(name, "CUDA").call_boxed
    return kernel


def _power(keys: Any, base: complex, exponent: torch.Tensor) -> torch.Tensor:
    kind = torch.result_type(exponent, base)
    return torch.pow(torch.full((), base, dtype=kind, device=exponent.device), exponent)


_kept: list[Any] = []
"""What is replaced stays so for as long as its library lives."""

"""Fake tensors and symbolic numbers, which stand for values while a backward is captured.

Private torch, as in ``_torch_compat.py``. Supported: torch 2.11, 2.13, 2.15.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Proxy
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, _suppress_guards
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

_SHAPE_ONLY: list[torch.Tensor] = []


def new_fake_mode() -> FakeTensorMode:
    """A fake mode with symbols, for one capture."""
    return FakeTensorMode(
        allow_fallback_kernels=True, allow_non_fake_inputs=True, shape_env=ShapeEnv()
    )


def dummy_tensor(mode: FakeTensorMode, device: torch.device) -> torch.Tensor:
    """A tensor that stands for a gradient in the engine's hands; its shape means nothing.

    Made directly and not by an operator: twenty times cheaper, and there is one for every
    gradient of the graph.
    """
    if not _SHAPE_ONLY:
        with torch._C._DisableTorchDispatch():
            _SHAPE_ONLY.append(torch.empty(0, 123456789, device="meta"))
    return FakeTensor(mode, _SHAPE_ONLY[0], device)


def fake_of_input(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake of the same shape (in numbers), layout, dtype and device.

    Raises:
        Exception: torch has no fake of such a tensor.
    """
    if _is_plain(tensor):
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            raise NotImplementedError("a tensor inside a torch.func transform")
        if functorch.is_legacy_batchedtensor(tensor):
            raise NotImplementedError("a gradient of grad(..., is_grads_batched=True)")
        shape_only = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return FakeTensor(mode, shape_only, tensor.device)
    return mode.from_tensor(tensor.detach(), static_shapes=True)


def storage_key(tensor: torch.Tensor) -> int | None:
    """A number for the storage of ``tensor``, None where it has none of its own."""
    return int(tensor.untyped_storage()._cdata) if _is_plain(tensor) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def without_guards(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """Sizes read while capturing must not become guards: C++ guards by its own key."""
    assert mode.shape_env is not None
    return _suppress_guards(mode.shape_env)


def symbolic_int(mode: FakeTensorMode, value: int, name: str, index: int) -> Any:
    """A size symbol for ``name[index]``, or the number itself where torch specialises."""
    assert mode.shape_env is not None
    return mode.shape_env.create_unspecified_symint_and_symbol(
        value, _source(name, index), DimDynamic.DYNAMIC
    )


def symbolic_float(mode: FakeTensorMode, value: float, name: str, index: int) -> Any:
    """A symbol for the float ``name[index]``."""
    assert mode.shape_env is not None
    source = _source(name, index)
    symbol = mode.shape_env.create_unspecified_symbol(
        value, source=source, dynamic_dim=DimDynamic.DYNAMIC
    )
    return mode.shape_env.create_symfloatnode(symbol, hint=value, source=source)


def _source(name: str, index: int) -> Any:
    from torch._dynamo.source import GetItemSource, LocalSource

    return GetItemSource(LocalSource(name), index)


def build_expression(expression: Any, symbols: dict[Any, Proxy]) -> Any:
    """Compute a sympy expression in an FX graph.

    Raises:
        KeyError: it has a symbol that is not among ``symbols``.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return sympy_interp(PythonReferenceAnalysis, symbols, expression)


def hint(value: Any) -> int | None:
    """The number that a size stands for at capture, None if it is unknown."""
    node = getattr(value, "node", None)
    found = node.hint if node is not None and node.has_hint() else value
    return found if isinstance(found, int) else None

"""Describes what a capture needs of private torch beside ``_torch_compat.py``: fake tensors and
symbolic numbers, which stand for values, and AOTAutograd's backward. Supported: torch 2.11 to 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Proxy
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, _suppress_guards
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

_allow_in_graph: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.compiler.allow_in_graph
_SHAPE_ONLY: list[torch.Tensor] = []


def new_fake_mode() -> FakeTensorMode:
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


def symbol(mode: FakeTensorMode, value: float, name: str, index: int) -> Any:
    """A symbol for the number ``name[index]``, or the number itself where torch specialises."""
    from torch._dynamo.source import GetItemSource, LocalSource

    shapes, source = mode.shape_env, GetItemSource(LocalSource(name), index)
    assert shapes is not None
    if isinstance(value, int):
        return shapes.create_unspecified_symint_and_symbol(value, source, DimDynamic.DYNAMIC)
    of_float = shapes.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    return shapes.create_symfloatnode(of_float, hint=value, source=source)


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


# --- AOTAutograd's backward ------------------------------------------------------------------


class AotBackward:
    """Describes what AOTAutograd's autograd.Function, ``ctx._forward_cls`` of a node, knows of its
    backward.

    Raises:
        LookupError: the backward graph was not kept (a hit of AOTAutograd's cache).
    """

    def __init__(self, forward_class: Any) -> None:
        self._class = forward_class
        self.id: int = forward_class._aot_id
        self.metadata: Any = forward_class.metadata
        self.subclass_metadata: Any = forward_class.maybe_subclass_metadata
        info = forward_class._lazy_backward_info
        if info is None:
            raise LookupError("AOTAutograd's cache keeps no backward graph")
        if hasattr(info, "bw_module"):
            self.module: GraphModule = info.bw_module
        else:
            from torch._subclasses.fake_tensor import unset_fake_temporarily

            with unset_fake_temporarily():
                self.module = info.bw_module_fn()

    def prologue(self) -> Callable[..., Any]:
        """``(saved_tensors, symints, opaque_objects, grads) -> arguments of the module``.

        Dynamo puts it into its graph as it is; it closes over constants only.
        """
        function = getattr(self._class, "_bw_prologue_fn", None)
        if function is None:  # up to 2.12
            from torch._functorch._aot_autograd import runtime_wrappers

            module: Any = runtime_wrappers
            inner = module._backward_prologue_functional
            metadata, subclasses = self.metadata, self.subclass_metadata

            def function(saved: Any, symints: Any, opaque: Any, grads: Sequence[Any]) -> Any:
                return inner(saved, symints, opaque, metadata, subclasses, *grads)

        def aot_backward_prologue(
            saved: Sequence[Any], symints: Sequence[Any], opaque: Sequence[Any], grads: Any
        ) -> Any:
            # It empties the lists that it is given; those of a graph cannot be written.
            return function(list(saved), list(symints), list(opaque), list(grads))

        return _allow_in_graph(aot_backward_prologue)

    def epilogue(self, outputs: Sequence[Any], make_subclass: Callable[..., Any]) -> Sequence[Any]:
        """Gradients from the module's outputs; ``make_subclass`` rebuilds tensor subclasses."""
        function = getattr(self._class, "_bw_epilogue_fn", None)
        override = {"make_subclass_override": make_subclass}
        if function is None:  # up to 2.12
            from torch._functorch._aot_autograd import runtime_wrappers

            module: Any = runtime_wrappers
            function = functools.partial(
                module._backward_epilogue_functional, self.metadata, self.subclass_metadata
            )
        elif self.subclass_metadata is None:
            override = {}
        gradients: Sequence[Any] = function(outputs, **override)
        return gradients

    @property
    def may_need_double_backward(self) -> bool:
        """Tells whether an output of the forward requires grad."""
        return any(output.requires_grad for output in self.metadata.output_info)


def subclass_maker(metadata: Any, is_runtime: bool) -> Callable[..., Any]:
    """``(dense tensors and sizes) -> tensor subclass``, as AOTAutograd's own run-time wrapper."""

    def make_subclass(*parts: Any) -> Any:
        return metadata.creation_fn(parts, is_runtime=is_runtime)

    return _allow_in_graph(make_subclass)


def aot_id(ctx: Any) -> int | None:
    """AOTAutograd's id of the graph, if it made this autograd.Function's node."""
    return getattr(ctx._forward_cls, "_aot_id", None)


def takes_boxed_grads(ctx: Any) -> bool:
    """Tells whether the backward wants its gradients in one list (2.13+), which nothing here can
    give."""
    return bool(getattr(ctx._forward_cls, "boxed_grads_call", False))


def aot_symints(ctx: Any) -> Sequence[Any]:
    """The symbolic sizes that the forward saved, lifted by this capture."""
    return ctx._get_compiled_autograd_symints()  # type: ignore[no-any-return]

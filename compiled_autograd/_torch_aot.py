"""AOTAutograd's backward, as its autograd.Function knows it.

Private torch, as in ``_torch_compat.py``. Supported: torch 2.11, 2.13, 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from ._torch_compat import allow_in_graph


class AotBackward:
    """What AOTAutograd's autograd.Function, ``ctx._forward_cls`` of a node, knows of its backward.

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
        if function is not None:  # 2.13+

            def aot_backward_prologue(
                saved: Sequence[Any], symints: Sequence[Any], opaque: Sequence[Any], grads: Any
            ) -> Any:
                # It empties the lists that it is given; those of a graph cannot be written.
                return function(list(saved), list(symints), list(opaque), list(grads))

        else:
            from torch._functorch._aot_autograd import runtime_wrappers

            inner: Any = runtime_wrappers._backward_prologue_functional  # type: ignore[attr-defined, unused-ignore]
            metadata, subclasses = self.metadata, self.subclass_metadata

            def aot_backward_prologue(
                saved: Sequence[Any], symints: Sequence[Any], opaque: Sequence[Any], grads: Any
            ) -> Any:
                return inner(saved, symints, opaque, metadata, subclasses, *grads)

        return allow_in_graph(aot_backward_prologue)

    def epilogue(self, outputs: Sequence[Any], make_subclass: Callable[..., Any]) -> Sequence[Any]:
        """Gradients from the module's outputs; ``make_subclass`` rebuilds tensor subclasses."""
        function = getattr(self._class, "_bw_epilogue_fn", None)
        if function is not None:  # 2.13+
            if self.subclass_metadata is None:
                found: Sequence[Any] = function(outputs)
            else:
                found = function(outputs, make_subclass_override=make_subclass)
            return found
        from torch._functorch._aot_autograd import runtime_wrappers

        inner: Any = runtime_wrappers._backward_epilogue_functional  # type: ignore[attr-defined, unused-ignore]
        rebuilt: Sequence[Any] = inner(
            self.metadata, self.subclass_metadata, outputs, make_subclass_override=make_subclass
        )
        return rebuilt

    @property
    def may_need_double_backward(self) -> bool:
        """Whether an output of the forward requires grad."""
        return any(output.requires_grad for output in self.metadata.output_info)


def subclass_maker(metadata: Any, is_runtime: bool) -> Callable[..., Any]:
    """``(dense tensors and sizes) -> tensor subclass``, as AOTAutograd's own run-time wrapper."""

    def make_subclass(*parts: Any) -> Any:
        return metadata.creation_fn(parts, is_runtime=is_runtime)

    return allow_in_graph(make_subclass)


def is_aot_node(ctx: Any) -> bool:
    """Whether an autograd.Function's node was made by AOTAutograd."""
    return hasattr(ctx._forward_cls, "_aot_id")


def takes_boxed_grads(ctx: Any) -> bool:
    """Whether the backward wants its gradients in one list (2.13+), which nothing here can give."""
    return bool(getattr(ctx._forward_cls, "boxed_grads_call", False))


def aot_symints(ctx: Any) -> Sequence[Any]:
    """The symbolic sizes that the forward saved, lifted by this capture."""
    found: Sequence[Any] = ctx._get_compiled_autograd_symints()
    return found

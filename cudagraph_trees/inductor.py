"""``use_in_inductor()``: plain ``torch.compile(mode="reduce-overhead")`` on these trees.

Inductor and Dynamo reach torch's trees through names in ``torch._inductor.cudagraph_trees``,
looked up at each use. Replacing the names replaces the trees; what was wrapped before keeps
the trees that it has.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import _torch_compat as compat
from .container import (
    all_managers,
    get_container,
    get_manager,
    reset_cudagraph_trees,
)
from .device.protocol import Input, Model, Output
from .entry import cudagraphify, cudagraphify_impl

OnWrap = Callable[[dict[str, Any]], None]


def mark_warmup_incomplete() -> None:
    """Ask for another warm-up of the function that is being warmed up now, if one is."""
    for manager in all_managers():
        manager.mark_warmup_incomplete()


def _wrap_for_inductor(
    model: Model, static_input_idxs: Sequence[int], options: dict[str, Any]
) -> Callable[[list[Input]], list[Output]]:
    """In the place of ``compile_fx.cudagraphify``, with one layer less."""
    options.setdefault("compile_id", compat.current_compile_id())
    wrapped: Callable[[list[Input]], list[Output]] | None = None
    lock = threading.Lock()

    def first(inputs: list[Input]) -> list[Output]:
        nonlocal wrapped
        with lock:
            if wrapped is None:
                wrapped = cudagraphify_impl(model, inputs, static_input_idxs, **options)
        return wrapped(inputs)

    def run(inputs: list[Input]) -> list[Output]:
        return (wrapped or first)(inputs)

    return run


class InductorTrees:
    """These trees in the place of torch's, from construction to ``undo()`` or the end of a
    ``with`` block."""

    def __init__(self, on_wrap: OnWrap | None = None) -> None:
        self._saved: list[tuple[object, str, object]] = []
        self._on_wrap = on_wrap
        for module, names in self._replacements().items():
            for name, ours in names.items():
                if hasattr(module, name):
                    self._saved.append((module, name, getattr(module, name)))
                    setattr(module, name, ours)

    def _replacements(self) -> dict[Any, dict[str, object]]:
        import torch._inductor.compile_fx as compile_fx
        import torch._inductor.cudagraph_trees as trees

        out: dict[Any, dict[str, object]] = {
            trees: {
                "cudagraphify_impl": cudagraphify_impl,
                "cudagraphify": cudagraphify,
                "get_container": get_container,
                "get_manager": get_manager,
                "reset_cudagraph_trees": functools.partial(
                    _reset_both, trees.reset_cudagraph_trees
                ),
                "mark_warmup_incomplete": mark_warmup_incomplete,
            },
            compile_fx: {"cudagraphify": _inductor_entry(compile_fx.cudagraphify, self._on_wrap)},
        }
        # Binds the name when it is imported.
        optimizer = sys.modules.get("torch._dynamo.variables.optimizer")
        if optimizer is not None:
            out[optimizer] = {"get_manager": get_manager}
        return out

    def undo(self) -> None:
        """Put torch's trees back. Functions wrapped meanwhile keep these."""
        while self._saved:
            module, name, theirs = self._saved.pop()
            setattr(module, name, theirs)

    def __enter__(self) -> InductorTrees:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def _inductor_entry(theirs: Callable[..., Any], on_wrap: OnWrap | None) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def entry(model: Model, static_input_idxs: Sequence[int] = (), **options: Any) -> Any:
        if not compat.triton_config.cudagraph_trees:
            return theirs(model, static_input_idxs, **options)
        if on_wrap is not None:
            on_wrap(options)
        return _wrap_for_inductor(model, static_input_idxs, options)

    return entry


def _reset_both(theirs: Callable[[], None]) -> None:
    reset_cudagraph_trees()
    theirs()


def use_in_inductor(on_wrap: OnWrap | None = None) -> InductorTrees:
    """Make ``torch.compile(mode="reduce-overhead")`` use these trees.

    Either for a block, ``with use_in_inductor(): ...``, or for good, ``use_in_inductor()``;
    its ``undo()`` puts torch's back. What counts is when a function is compiled, not when it
    is called.

    Args:
        on_wrap: called with the keyword arguments of each function that is wrapped, which it
            may complete (``record``, ``partition``, …) until the function is first called.
    """
    return InductorTrees(on_wrap)

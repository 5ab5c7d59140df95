"""``use_in_inductor()``: plain ``torch.compile(mode="reduce-overhead")`` on these trees.

Inductor and Dynamo look names of torch's trees up at each use. Replacing the names replaces the
trees; what was wrapped before keeps the trees that it has.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .. import _torch_compat as compat
from ..device.protocol import Input, Model
from ..torch_options import TreeOptions
from .container import get_container, get_manager, reset_cudagraph_trees
from .entry import ShapeDispatcher, cudagraphify, cudagraphify_impl

OnWrap = Callable[[Model, dict[str, Any]], Model]


class InductorTrees:
    """``use_in_inductor()`` makes ``torch.compile(mode="reduce-overhead")`` use these trees.

    Either for a block, ``with use_in_inductor(): ...``, or for good, ``use_in_inductor()``;
    its ``undo()`` puts torch's back. What counts is when a function is compiled, not when it
    is called. Several may overlap, in any order and in several threads.

    Args:
        on_wrap: called with each function that is wrapped and its keyword arguments, which it
            may complete (``record``, ``partition``, …) until the function is first called.
            Returns what is wrapped: the function, or one in its place.
        this_thread: only for what the calling thread compiles.
    """

    def __init__(self, on_wrap: OnWrap | None = None, *, this_thread: bool = False) -> None:
        self.on_wrap = on_wrap
        self.thread = threading.get_ident() if this_thread else None
        with _lock:
            _in_use.append(self)
            _switch()

    def undo(self) -> None:
        """Put torch's trees back. Functions wrapped meanwhile keep memprof's."""
        with _lock:
            if self in _in_use:
                _in_use.remove(self)
                _switch()

    def __enter__(self) -> InductorTrees:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()


Names = list[tuple[object, str, Any]]
"""Module, name, and what it stands for."""

_lock = threading.RLock()
_in_use: list[InductorTrees] = []
_theirs_of_the_compiler: Names = []
_theirs_of_the_trees: Names = []


def _switch() -> None:
    """Replace torch's names by ours, or restore torch's."""
    everywhere = any(used.thread is None for used in _in_use)
    for on, theirs, ours in (
        (bool(_in_use), _theirs_of_the_compiler, _names_of_the_compiler),
        (everywhere, _theirs_of_the_trees, _names_of_the_trees),
    ):
        if on and not theirs:
            for module, name, replacement in ours():
                if hasattr(module, name):
                    theirs.append((module, name, getattr(module, name)))
                    setattr(module, name, replacement)
        while theirs and not on:
            setattr(*theirs.pop())


def _in_use_here() -> InductorTrees | None:
    """Trees that the calling thread compiles for, None for torch's."""
    if not compat.triton_option("cudagraph_trees"):
        return None
    here = (None, threading.get_ident())
    return next((used for used in reversed(_in_use) if used.thread in here), None)


def _names_of_the_compiler() -> Names:
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.output_code as output_code

    backward = _backward_entry(output_code.maybe_handle_backward_generation)
    return [
        (compile_fx, "cudagraphify", _inductor_entry(compile_fx.cudagraphify)),
        (output_code, "maybe_handle_backward_generation", backward),
        (output_code, "complex_memory_overlap", compat.overlap_if_known(output_code)),
    ]


def _names_of_the_trees() -> Names:
    import torch._inductor.cudagraph_trees as trees

    same = (cudagraphify_impl, cudagraphify, get_container, get_manager)
    reset = functools.partial(_reset_both, trees.reset_cudagraph_trees)
    names: Names = [(trees, ours.__name__, ours) for ours in same]
    return [*names, (trees, "reset_cudagraph_trees", reset)]


def _inductor_entry(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def entry(model: Model, static_input_idxs: Sequence[int] = (), **options: Any) -> Any:
        used = _in_use_here()
        if used is None:
            return theirs(model, static_input_idxs, **options)
        options["torch_options"] = TreeOptions.of_this_compilation()
        if used.on_wrap is not None:
            model = used.on_wrap(model, options)
        options.setdefault("compile_id", compat.current_compile_id())
        # Not prepared: the options are complete when it is first called.
        return ShapeDispatcher(model, static_input_idxs, options["device_index"], options)

    return entry


def _backward_entry(theirs: Callable[..., None]) -> Callable[..., None]:
    """A backward that gets no graph although its forward has one: it releases the step, see
    Note [Generations]. Torch asks for the manager when such a backward is compiled, and fails
    if there is none: its forward had no pool, or it is another thread that calls backward."""

    @functools.wraps(theirs)
    def entry(compiled: Any, forward_device: Any) -> None:
        device = getattr(forward_device, "value", None)
        if _in_use_here() is None:
            theirs(compiled, forward_device)
        elif compiled.fx_kwargs["is_backward"] and device is not None:
            run = compiled.current_callable

            def call(inputs: list[Input]) -> Any:
                manager = get_manager(device, create_if_none_exists=False)
                if manager is not None:
                    manager.set_to_running_backward()
                return run(inputs)

            compiled.current_callable = call

    return entry


def _reset_both(theirs: Callable[[], None]) -> None:
    reset_cudagraph_trees()
    theirs()


use_in_inductor = InductorTrees

"""``use_in_inductor()``: plain ``torch.compile(mode="reduce-overhead")`` on these trees.

Inductor and Dynamo reach torch's trees through names in ``torch._inductor.cudagraph_trees``,
looked up at each use. Replacing the names replaces the trees; what was wrapped before keeps
the trees that it has.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _torch_compat as compat
from .container import get_container, get_manager, reset_cudagraph_trees
from .device.protocol import Input, Model, Output
from .entry import cudagraphify, cudagraphify_impl
from .torch_options import TreeOptions

OnWrap = Callable[[Model, dict[str, Any]], Model]


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


class _Replaced:
    """Names of torch that stand for something of ours, or for what they stood for."""

    def __init__(self, ours: Callable[[], Iterable[tuple[object, str, object]]]) -> None:
        self._ours = ours
        self._theirs: list[tuple[object, str, object]] = []

    def switch(self, on: bool) -> None:
        """Put ours in the place of the names, or theirs back. Idempotent."""
        if on and not self._theirs:
            for module, name, ours in self._ours():
                if hasattr(module, name):
                    self._theirs.append((module, name, getattr(module, name)))
                    setattr(module, name, ours)
        while self._theirs and not on:
            setattr(*self._theirs.pop())


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
        """Put torch's trees back. Functions wrapped meanwhile keep these."""
        with _lock:
            if self in _in_use:
                _in_use.remove(self)
                _switch()

    def __enter__(self) -> InductorTrees:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()


_lock = threading.RLock()
_in_use: list[InductorTrees] = []


def _switch() -> None:
    _COMPILER.switch(bool(_in_use))
    _TREES.switch(any(used.thread is None for used in _in_use))


def _in_use_here() -> InductorTrees | None:
    """What the calling thread compiles for, None for torch's trees."""
    if not compat.triton_option("cudagraph_trees"):
        return None
    here = (None, threading.get_ident())
    return next((used for used in reversed(_in_use) if used.thread in here), None)


def _names_of_the_compiler() -> Iterable[tuple[object, str, object]]:
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.output_code as output_code

    yield compile_fx, "cudagraphify", _inductor_entry(compile_fx.cudagraphify)
    name = "maybe_handle_backward_generation"
    yield output_code, name, _backward_entry(getattr(output_code, name))


def _names_of_the_trees() -> Iterable[tuple[object, str, object]]:
    import torch._inductor.cudagraph_trees as trees

    for ours in (cudagraphify_impl, cudagraphify, get_container, get_manager):
        yield trees, ours.__name__, ours
    name = "reset_cudagraph_trees"
    yield trees, name, functools.partial(_reset_both, getattr(trees, name))


_COMPILER = _Replaced(_names_of_the_compiler)
_TREES = _Replaced(_names_of_the_trees)


def _inductor_entry(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def entry(model: Model, static_input_idxs: Sequence[int] = (), **options: Any) -> Any:
        used = _in_use_here()
        if used is None:
            return theirs(model, static_input_idxs, **options)
        options["torch_options"] = TreeOptions.of_this_compilation()
        if used.on_wrap is not None:
            model = used.on_wrap(model, options)
        return _wrap_for_inductor(model, static_input_idxs, options)

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

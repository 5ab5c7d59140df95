"""Run-time wrapper, which C++ calls for each backward that has a captured graph.

Note [Final callbacks]
~~~~~~~~~~~~~~~~~~~~~~
``Variable._execution_engine.queue_callback(f)`` in a hook has ``f`` called once, when the
backward's gradients are there: FSDP2 gives its parameters back so. The engine keeps such callbacks
with the backward that is running, and never calls those of a captured one. So while one runs,
``_execution_engine`` is an object of ours that keeps the callbacks of this backward and calls them
as the engine does: in order, those too that a callback queues, none if the backward or an earlier
one fails. What other backwards queue meanwhile, one inside of a hook or one of another thread, goes
to the engine as ever.

Dynamo knows the engine's own object, and can queue callbacks only where it takes the whole
captured graph. Ours it traces like anybody's code: an append to a list, which is written back
wherever a graph ends. It cannot ask the engine for the number of the backward, but guards on what
it reads: whether this thread runs the captured graph and no other backward inside of that
(``THREAD``). In another backward it has a graph break and the engine is called.

Callbacks of who keeps the engine's object from before, and of C++ code, are not called: of torch's
own that is DDP's C++ reducer, whose backwards are not captured.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from memprof.profiler.support.process_hooks import on_fork

from . import _torch_compat
from .capture import CapturedBackward, Listener
from .switch import OFF, SWITCH, THREAD, end_turn


def runtime_wrapper(
    capture: CapturedBackward,
    listeners: list[Listener],
    context: Any,
) -> Callable[..., Any]:
    """Return a function that runs the compiled one with compiled autograd itself switched off.

    Off, because a hook or a re-entrant checkpoint may call ``backward()`` inside: those inner
    backwards run in the normal engine. Dynamo names compilations inside after ``context``.
    """
    used_sizes, to_cuda = capture.used_sizes, capture.inputs_to_cuda
    state = _torch_compat.state

    @functools.lru_cache(4096)
    def carrier(index: int, value: int) -> Any:
        """The tensor that carries a size; making one costs microseconds, and there are many.

        One for each place: Dynamo would guard on two places sharing one.
        """
        return _torch_compat.mark_dynamic_size(value)

    @_torch_compat.unseen_by_dynamo
    def run(
        compiled_fn: Callable[..., Any],
        inputs: list[torch.Tensor],
        sizes: Sequence[int],
        scalars: list[Any],
        hooks: Any,
        packed_data: Any,
    ) -> Any:
        """Run the captured graph; return the gradients for ``grad()``, none for ``backward()``."""
        THREAD.ran = True
        if listeners:
            hit = next(capture.runs) > 0
            for listener in tuple(listeners):
                listener.ran(capture, hit)
        for i, gpu in to_cuda.items():
            inputs[i] = inputs[i].pin_memory().to(gpu, non_blocking=True)
        lifted = [carrier(i, sizes[i]) for i in used_sizes]
        claim = SWITCH.open(OFF, runs=True)
        try:
            state.in_compiled_autograd_region = True
            end_turn()
            with final_callbacks(), _torch_compat.compile_context(context):
                return _torch_compat.seen_by_dynamo(compiled_fn)(
                    inputs, lifted, scalars, hooks, packed_data
                )
        finally:
            state.in_compiled_autograd_region = False
            SWITCH.close(claim)

    return run


class _Engine:
    """Stands for ``Variable._execution_engine`` while a captured graph runs."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.backward = -1
        self.callbacks: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        if torch.compiler.is_dynamo_compiling():
            mine = THREAD.is_captured
        else:
            mine = _torch_compat.backward_id() == self.backward
        if mine:
            self.callbacks.append(callback)
        else:
            self.queue_elsewhere(callback)

    @_torch_compat.entered_by_dynamo
    def queue_elsewhere(self, callback: Callable[[], Any]) -> None:
        self.engine.queue_callback(callback)


_VARIABLE: Any = torch.autograd.Variable
"""The class by which hooks reach the engine, as ``Variable._execution_engine``."""
_ENGINE = _Engine(_VARIABLE._execution_engine)


@contextlib.contextmanager
def final_callbacks() -> Iterator[None]:
    """Inside, a captured graph runs, the only one; at the end, the callbacks that it queued."""
    _ENGINE.backward = _torch_compat.backward_id()
    _VARIABLE._execution_engine = _ENGINE
    THREAD.runs = THREAD.is_captured = True
    try:
        yield
        for callback in _ENGINE.callbacks:  # which may grow meanwhile
            _torch_compat.seen_by_dynamo(callback)()
    finally:
        THREAD.runs = THREAD.is_captured = False
        _put_back()


def _put_back() -> None:
    _VARIABLE._execution_engine = _ENGINE.engine
    _ENGINE.callbacks = []


@on_fork
def _after_fork() -> None:
    """In a child: the thread whose captured graph ran may not exist there."""
    if not THREAD.runs:
        _put_back()

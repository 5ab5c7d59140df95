"""Callbacks that hooks queue for the end of the backward.

Note [Final callbacks]
~~~~~~~~~~~~~~~~~~~~~~
``Variable._execution_engine.queue_callback(f)`` in a hook has ``f`` called once, when the
backward's gradients are there: FSDP2 gives its parameters back so, DDP's Python reducer waits
for its collectives. The engine keeps such callbacks with the backward that is running and
calls them at its end; of a captured backward it never calls them, since what runs is the
captured graph. So while one runs, ``_execution_engine`` is an object of ours that keeps the
callbacks of this backward and calls them as the engine does: in order, those too that
a callback queues, none if the backward or an earlier one fails. What is queued by other
backwards meanwhile, one inside of a hook or one of another thread, goes to the engine as ever.

Dynamo knows the engine's own object, and can queue callbacks only where it takes the whole
captured graph. Ours it traces like anybody's code: an append to a list, which is written back
wherever a graph ends. It cannot ask the engine for the number of the backward, but guards on what
it reads: whether this thread runs the captured graph and no other backward inside of that
(``HERE``). In another backward it has a graph break and the engine is called.

Who keeps the engine's object from before, and C++ code that queues a callback itself, are not
seen here, and their callbacks not called. torch has one such place, DDP's C++ reducer, whose
backwards are not captured.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memprof.profiler.process_hooks import on_fork

from . import _torch_compat


class _Here(threading.local):
    """What a thread runs at this moment.

    Attributes:
        runs: it runs a captured graph.
        is_captured: the backward that it runs, the innermost one, is that.
    """

    def __init__(self) -> None:
        # Not of the class: Dynamo of torch 2.11 would look no further than that.
        self.runs = False
        self.is_captured = False


HERE = _Here()


@contextlib.contextmanager
def another_backward() -> Iterator[None]:
    """Inside, this thread runs a backward of which it is not known that it is captured."""
    outer = HERE.is_captured
    HERE.is_captured = False
    try:
        yield
    finally:
        HERE.is_captured = outer


class _Engine:
    """Stands for ``Variable._execution_engine`` while a captured graph runs.

    Attributes:
        callbacks: queued and not yet called.
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.backward = -1
        self.callbacks: list[Callable[[], Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Queue a callback for the end of the backward that runs."""
        if torch.compiler.is_dynamo_compiling():
            mine = HERE.is_captured
        else:
            mine = _torch_compat.backward_id() == self.backward
        if mine:
            self.callbacks.append(callback)
        else:
            self.queue_elsewhere(callback)

    @_torch_compat.entered_by_dynamo
    def queue_elsewhere(self, callback: Callable[[], Any]) -> None:
        """Queue the callback of a backward that is not captured with the engine."""
        self.engine.queue_callback(callback)


_ENGINE = _Engine(_torch_compat.Variable._execution_engine)


@contextlib.contextmanager
def final_callbacks() -> Iterator[None]:
    """Inside, a captured graph runs; at the end, the callbacks that it queued.

    The engine runs one captured graph at a time.
    """
    _ENGINE.backward = _torch_compat.backward_id()
    _torch_compat.Variable._execution_engine = _ENGINE
    HERE.runs = HERE.is_captured = True
    try:
        yield
        called = 0
        while called < len(_ENGINE.callbacks):
            _torch_compat.seen_by_dynamo(_ENGINE.callbacks[called])()
            called += 1
    finally:
        HERE.runs = HERE.is_captured = False
        _put_back()


def _put_back() -> None:
    _torch_compat.Variable._execution_engine = _ENGINE.engine
    _ENGINE.callbacks = []


@on_fork
def _after_fork() -> None:
    """In a child: the thread whose captured graph ran may not exist there."""
    if not HERE.runs:
        _put_back()

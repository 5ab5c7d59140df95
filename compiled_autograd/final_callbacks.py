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
wherever a graph ends.

Who keeps the engine's object from before, and C++ code that queues a callback itself, are not
seen here, and their callbacks not called. torch has one such place, DDP's C++ reducer, whose
backwards are not captured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _torch_compat


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
        """As the engine's."""
        # What Dynamo traces here is the captured graph or called by it.
        if torch.compiler.is_dynamo_compiling() or _torch_compat.backward_id() == self.backward:
            self.callbacks.append(callback)
        else:
            self.engine.queue_callback(callback)


_ENGINE = _Engine(_torch_compat.execution_engine())


@contextlib.contextmanager
def final_callbacks() -> Iterator[None]:
    """Inside, a captured graph runs; at the end, the callbacks that it queued.

    The engine runs one captured graph at a time.
    """
    _ENGINE.backward = _torch_compat.backward_id()
    _torch_compat.set_execution_engine(_ENGINE)
    try:
        yield
        called = 0
        while called < len(_ENGINE.callbacks):
            _torch_compat.seen_by_dynamo(_ENGINE.callbacks[called])()
            called += 1
    finally:
        _torch_compat.set_execution_engine(_ENGINE.engine)
        _ENGINE.callbacks = []

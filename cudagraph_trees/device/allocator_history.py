"""The caching allocator's own history, while a graph is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import _torch_compat as compat


@contextlib.contextmanager
def allocator_history() -> Iterator[Callable[[int], list[dict[str, Any]]]]:
    """Within it the caching allocator writes down what it does, with Python frames, unless the user
    has switched a history on, which goes on as it was. Yields what gives the events on one device
    since the beginning, to be called inside."""
    theirs = compat.history_enabled()
    if not theirs:
        torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    last = [_identity(t[-1]) if t else None for t in _device_traces()] if theirs else []

    def events(device: int) -> list[dict[str, Any]]:
        traces = _device_traces()
        trace = traces[device] if device < len(traces) else []
        before = last[device] if device < len(last) else None
        # From the end: a bounded history drops entries at its beginning.
        for i in range(len(trace) - 1, -1, -1):
            if _identity(trace[i]) == before:
                return trace[i + 1 :]
        return trace

    try:
        yield events
    finally:
        if not theirs:
            torch.cuda.memory._record_memory_history(None)


def _identity(event: dict[str, Any]) -> tuple[object, ...]:
    return tuple(event.get(key) for key in ("time_us", "action", "addr", "size"))


def _device_traces() -> list[list[dict[str, Any]]]:
    return torch.cuda.memory._snapshot()["device_traces"]  # type: ignore[no-any-return]

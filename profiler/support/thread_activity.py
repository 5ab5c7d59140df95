"""Notes on each thread what memprof does on it, and what the CUDA graphs are called that it
captures, for reports of what happens there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Activity:
    """Something memprof does in the place of the program, in words, e.g. ``recording 0/0 forward
    as a CUDA graph``, and the allocator's pool that serves it meanwhile, None if not known."""

    what: str
    pool: tuple[int, int] | None = None


class _ThreadNotes(threading.local):
    activity: Activity | None = None
    graphs = ""


_here = _ThreadNotes()


@contextmanager
def activity(what: str, pool: tuple[int, int] | None = None) -> Iterator[None]:
    """Have ``current_activity`` return this on this thread, within the context."""
    before, _here.activity = _here.activity, Activity(what, pool)
    try:
        yield
    finally:
        _here.activity = before


def current_activity() -> Activity | None:
    """Activity of memprof on this thread, None if the program itself runs."""
    return _here.activity


@contextmanager
def name_graphs(name: str) -> Iterator[None]:
    """Give a name to the CUDA graphs that this thread captures inside, such as ``batch 64``.

    It is shown where somebody watches (``memprof.watch_graphs``), and costs nothing where not.
    """
    before, _here.graphs = _here.graphs, name
    try:
        yield
    finally:
        _here.graphs = before


def capture_name() -> str:
    """Returns the name for graphs that this thread captures, "" where it has given none."""
    return _here.graphs

"""Notes on each thread what memprof does on it, and what the CUDA graphs are called that it
captures, for reports of what happens there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ThreadNotes(threading.local):
    """Notes on this thread.

    Attributes:
        activity: what memprof does in the place of the program, in words, e.g. ``recording 0/0
            forward as a CUDA graph``; empty if the program itself runs.
        pool: of the allocator, which serves it meanwhile; None if not known.
        graphs: name for CUDA graphs that are captured; empty where none was given.
    """

    activity = ""
    pool: tuple[int, int] | None = None
    graphs = ""


HERE = ThreadNotes()


@contextmanager
def activity(what: str, pool: tuple[int, int] | None = None) -> Iterator[None]:
    """Note an activity on this thread, within the context."""
    before = HERE.activity
    served_before = HERE.pool
    HERE.activity = what
    HERE.pool = pool
    try:
        yield
    finally:
        HERE.activity = before
        HERE.pool = served_before


@contextmanager
def name_graphs(name: str) -> Iterator[None]:
    """Give a name to the CUDA graphs that this thread captures inside, such as ``batch 64``.

    It is shown where somebody watches (``memprof.watch_graphs``), and costs nothing where not.
    """
    before, HERE.graphs = HERE.graphs, name
    try:
        yield
    finally:
        HERE.graphs = before

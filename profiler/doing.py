"""Describes what a thread is about, for whoever has to explain what happens there: what memprof
itself does, and of what the CUDA graphs are that are captured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Doing:
    """Something memprof does in the place of the program, in words, e.g. ``recording 0/0 forward
    as a CUDA graph``, and the allocator's pool that serves it meanwhile, None if not known."""

    what: str
    pool: tuple[int, int] | None = None


class _OfThread(threading.local):
    doing: Doing | None = None
    graphs = ""


_here = _OfThread()


@contextmanager
def doing(what: str, pool: tuple[int, int] | None = None) -> Iterator[None]:
    """Within it ``current`` says so on this thread."""
    before, _here.doing = _here.doing, Doing(what, pool)
    try:
        yield
    finally:
        _here.doing = before


def current() -> Doing | None:
    """Returns what memprof does on this thread, None if the program itself runs."""
    return _here.doing


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
    return _here.graphs

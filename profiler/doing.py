"""What memprof itself is about on a thread, for whoever has to explain what happens there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Doing:
    """Something memprof does in the place of the program.

    Attributes:
        what: in words, e.g. ``recording 0/0 forward as a CUDA graph``.
        pool: of the allocator, from which what is asked for meanwhile comes; None if not known.
    """

    what: str
    pool: tuple[int, int] | None = None


class _OfThread(threading.local):
    now: Doing | None = None


_here = _OfThread()


@contextmanager
def doing(what: str, pool: tuple[int, int] | None = None) -> Iterator[None]:
    """Within it ``current`` says so on this thread."""
    before, _here.now = _here.now, Doing(what, pool)
    try:
        yield
    finally:
        _here.now = before


def current() -> Doing | None:
    """What memprof does on this thread, None if the program itself runs."""
    return _here.now

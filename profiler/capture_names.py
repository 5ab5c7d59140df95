"""Names for CUDA graphs: whoever captures says what the graph is of, for reports to show."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_of_thread = threading.local()


@contextmanager
def name_graphs(name: str) -> Iterator[None]:
    """Give a name to the CUDA graphs that this thread captures inside, such as ``batch 64``.

    It is shown where somebody watches (``memprof.watch_graphs``), and costs nothing where not.
    """
    before = capture_name()
    _of_thread.name = name
    try:
        yield
    finally:
        _of_thread.name = before


def capture_name() -> str:
    """The innermost name on this thread, empty if there is none."""
    name: str = getattr(_of_thread, "name", "")
    return name

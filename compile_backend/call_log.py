"""One record a call, bounded, cheap enough to be always on."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from memprof.profiler.model import CallColumns

CallRecord = tuple[int, int, int, int, int]
"""(graph id, program index, start ns, end ns, thread identifier)"""

DEFAULT_CAPACITY = 65_536


class CallLog:
    """The last ``capacity`` calls, and a count of all.

    ``record`` is the one thing on the hot path: a ``deque.append``, atomic under the
    GIL, about 0.1 µs. It is looked up at each call, so the log can be replaced by a
    larger one while compiled functions hold this object.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._records: deque[CallRecord] = deque(maxlen=capacity)
        self.record: Callable[[CallRecord], None] = self._records.append

    @property
    def capacity(self) -> int:
        """How many calls are kept."""
        return self._records.maxlen or 0

    def resize(self, capacity: int) -> None:
        """Keep the last ``capacity`` calls from here on."""
        self._records = deque(self._records, maxlen=capacity)
        self.record = self._records.append

    def clear(self) -> None:
        """Forget all records."""
        self.resize(self.capacity)
        self._records.clear()

    def after(self, last: CallRecord | None = None) -> list[CallRecord]:
        """The records that came after ``last``, a record of this log; all that are left if
        that one has been pushed out, or is None."""
        # A copy first: the deque grows while we look. Copying is one step under the GIL.
        records = list(self._records)
        for i in range(len(records) - 1, -1, -1):
            if records[i] is last:
                return records[i + 1 :]
        return records


def columns(
    records: Iterable[CallRecord],
    graphs: Iterable[int],
    since_ns: int = 0,
    returned: int | None = None,
    threads: dict[int, int] | None = None,
) -> CallColumns:
    """Those of ``records`` that are calls to ``graphs`` and began at or after ``since_ns``.

    Args:
        since_ns: ``time.perf_counter_ns()``.
        returned: how many such calls there were; what is missing is ``dropped``.
        threads: filled with the number that each thread gets, by its identifier.
    """
    wanted = set(graphs)
    threads = {} if threads is None else threads
    found = CallColumns()
    for graph, program, start, end, thread in records:
        if graph in wanted and start >= since_ns:
            found.graph.append(graph)
            found.program.append(program)
            found.start_ns.append(start)
            found.end_ns.append(end)
            found.thread.append(threads.setdefault(thread, len(threads)))
    dropped = max(0, returned - len(found)) if returned is not None else 0
    return replace(found, dropped=dropped)


class Counter:
    """A count that several threads can advance without losing any: ``tick()``."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self.tick: Callable[[], int] = self._count.__next__

    @property
    def value(self) -> int:
        """How often ``tick`` was called."""
        return int(repr(self._count)[len("count(") : -1])

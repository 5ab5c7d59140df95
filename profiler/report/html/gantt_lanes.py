"""Places bars in rows, so that no two of a row overlap.

In a lane of a thread a bar that begins while another runs stands below it: nested operations, and
the calls inside them, hang from what called them. In a lane of asyncio tasks, which take turns on
one thread, each task's outermost operation with all that is in it takes the first rows that are
free: a server with a thousand requests, eight at a time, has eight rows and not a thousand.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(slots=True)
class Bar:
    """One thing that took time.

    Attributes:
        start_ns, end_ns: when.
        name: what to write on it.
        kind: decides its colour.
        detail: position among the details of its kind.
        task: in a lane of tasks, which one; 0 elsewhere.
        row: where it stands in its lane, from 0 at the top.
        outermost: nothing else of its thread or task is around it.
    """

    start_ns: int
    end_ns: int
    name: str
    kind: str
    detail: int
    task: int = 0
    row: int = 0
    outermost: bool = True


def nested_rows(bars: list[Bar]) -> int:
    """Sort bars by start and place each below those that still run; the number of rows."""
    bars.sort(key=lambda b: (b.start_ns, -b.end_ns))
    # Rows in use, from the top: end and how many rows in a row have it. Ends do not grow downwards.
    ends: list[tuple[int, int]] = []
    used = 0
    for bar in bars:
        while ends and ends[-1][0] <= bar.start_ns:
            used -= ends.pop()[1]
        # Bars of a thread nest. Those that do not (calls that the log has on one thread number
        # after it was given to another) go further down and hide nothing: what is above them stays
        # in use for as long as they are.
        bar.row = used
        bar.outermost = bar.row == 0
        count = 1
        while ends and ends[-1][0] <= bar.end_ns:
            count += ends.pop()[1]
        ends.append((bar.end_ns, count))
        used += 1
    return 1 + max((b.row for b in bars), default=-1)


def packed_rows(bars: list[Bar]) -> int:
    """Place the bars of several tasks, each outermost one with its inside as one block; the
    number of rows."""
    blocks: list[list[Bar]] = []
    by_task: dict[int, list[Bar]] = {}
    for bar in bars:
        by_task.setdefault(bar.task, []).append(bar)
    for own in by_task.values():
        nested_rows(own)
        for bar in own:
            if bar.outermost:
                blocks.append([])
            blocks[-1].append(bar)
    blocks.sort(key=lambda block: block[0].start_ns)
    free: list[int] = []  # rows, in order
    busy: list[tuple[int, int]] = []  # until when, and which row: a heap
    rows = 0
    for block in blocks:
        while busy and busy[0][0] <= block[0].start_ns:
            insort(free, heappop(busy)[1])
        height = 1 + max(b.row for b in block)
        base = _first_free(free, rows, height)
        at = bisect_left(free, base)
        del free[at : at + min(height, rows - base)]
        end = max(b.end_ns for b in block)
        for row in range(base, base + height):
            heappush(busy, (end, row))
        rows = max(rows, base + height)
        for bar in block:
            bar.row += base
    bars.sort(key=lambda b: (b.start_ns, b.row))
    return rows


def _first_free(free: Sequence[int], rows: int, height: int) -> int:
    """The first of ``height`` free rows side by side; below the last row all are free."""
    run, before = 0, -1
    for row in free:
        run = run + 1 if row == before + 1 else 1
        if run == height:
            return row + 1 - height
        before = row
    return rows - run if before == rows - 1 else rows

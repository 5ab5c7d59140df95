"""Places bars in rows, so that no two of a row overlap.

In a lane of a thread a bar that begins while another runs stands below it: nested operations, and
the calls inside them, hang from what called them. In a lane of asyncio tasks, which take turns on
one thread, each task's outermost operation with all that is in it takes the first rows that are
free: a server with a thousand requests, eight at a time, has eight rows and not a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bar", "nested_rows", "packed_rows"]


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
    ends: list[int] = []
    for bar in bars:
        while ends and ends[-1] <= bar.start_ns:
            ends.pop()
        # Bars of a thread nest. Those that do not (calls that the log has on one thread number
        # after it was given to another) go further down and hide nothing.
        bar.row = len(ends)
        bar.outermost = bar.row == 0
        ends.append(bar.end_ns)
        for i in range(len(ends) - 2, -1, -1):
            if ends[i] >= bar.end_ns:
                break
            ends[i] = bar.end_ns
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
    free_from: list[int] = []
    for block in blocks:
        height = 1 + max(b.row for b in block)
        base = _first_free(free_from, block[0].start_ns, height)
        end = max(b.end_ns for b in block)
        free_from.extend([0] * (base + height - len(free_from)))
        free_from[base : base + height] = [end] * height
        for bar in block:
            bar.row += base
    bars.sort(key=lambda b: (b.start_ns, b.row))
    return len(free_from)


def _first_free(free_from: Sequence[int], start: int, height: int) -> int:
    run = 0
    for row, end in enumerate(free_from):
        run = run + 1 if end <= start else 0
        if run == height:
            return row + 1 - height
    return len(free_from) - run

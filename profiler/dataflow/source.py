"""The line of user code below which an event of a trace happened.

Found only when asked for: the tree is walked again, with the numbering of ``read.py``,
and the Python calls around the wanted events are looked at. The innermost call from user
code tells the line; "user code" is any file that is neither torch's nor Python's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import _torch_compat as compat

_NOT_USER = ("torch/", "<", "contextlib.py", "functools.py", "threading.py")


def lines_of_events(result: Any, wanted: set[int], *, skip_compiler: bool = True) -> dict[int, str]:
    """``file:line`` of each wanted event, where a Python call from user code is around it.

    Args:
        result: the profiler's result.
        wanted: numbers of events, as in ``EventColumns``.
        skip_compiler: as it was for ``read_events``.
    """
    out: dict[int, str] = {}
    if not wanted:
        return out
    number, last = -1, max(wanted)
    stack: list[Iterator[Any]] = [iter(compat.event_tree(result))]
    path: list[Any] = []
    while stack:
        event = next(stack[-1], None)
        if event is None:
            stack.pop()
            if path:
                path.pop()
            continue
        number += 1
        if number in wanted:
            line = _line(path)
            if line is not None:
                out[number] = line
        if number >= last:
            break
        x = event.extra_fields
        if type(x) is compat.Allocation:
            continue
        if skip_compiler and type(x) is compat.PyCall and compat.is_compiler_frame(_name(event)):
            continue
        children = event.children
        if children:
            stack.append(iter(children))
            path.append(event)
    return out


def _name(event: Any) -> str:
    try:
        return str(event.name)
    except UnicodeDecodeError:
        return ""


def _line(path: list[Any]) -> str | None:
    for event in reversed(path):
        x = event.extra_fields
        if type(x) is compat.PyCall or type(x) is compat.PyCCall:
            found = _user_line(x.caller)
            if found is None and type(x) is compat.PyCall:
                found = _user_line(x.callsite)
            if found is not None:
                return found
    return None


def _user_line(frame: Any) -> str | None:
    try:
        name = str(frame.file_name)
    except UnicodeDecodeError:
        return None
    if name.startswith(_NOT_USER) or "/site-packages/" in name or "torchinductor_" in name:
        return None
    return f"{name}:{frame.line_number}"

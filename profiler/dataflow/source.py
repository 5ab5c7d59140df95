"""Events of a trace, and the line of user code below which each happened.

Found only when asked for: the tree is walked again, with the numbering of ``read.py``,
as far as the wanted events. The innermost Python call that user code made tells the
line; "user code" is any file that is not torch's, memprof's, an installed package's or
generated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from . import _torch_compat as compat

_NOT_USER = re.compile(
    r"^torch/|^<|^(contextlib|functools|threading)\.py$|/site-packages/|torchinductor_"
    r"|(^|/)(memprof|compile_backend|cudagraph_trees|compiled_autograd)/"
)


def events_by_number(
    result: Any, wanted: set[int], *, skip_compiler: bool = True
) -> Iterator[tuple[int, Any, list[Any]]]:
    """Number, event and the events around it, outermost first, of the wanted events.

    The list of the events around it is reused: copy what is to be kept.

    Args:
        result: the profiler's result.
        wanted: numbers of events, as in ``EventColumns``.
        skip_compiler: as it was for ``read_events``.
    """
    if not wanted:
        return
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
            yield number, event, path
        if number >= last:
            return
        x = event.extra_fields
        if type(x) is compat.Allocation:
            continue
        if skip_compiler and type(x) is compat.PyCall and compat.is_compiler_frame(_name(event)):
            continue
        children = event.children
        if children:
            stack.append(iter(children))
            path.append(event)


def lines_of_events(result: Any, wanted: set[int], *, skip_compiler: bool = True) -> dict[int, str]:
    """``file:line`` of each wanted event, where a Python call from user code is around it."""
    out: dict[int, str] = {}
    for number, _, path in events_by_number(result, wanted, skip_compiler=skip_compiler):
        line = _line(path)
        if line is not None:
            out[number] = line
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
    return None if _NOT_USER.search(name) else f"{name}:{frame.line_number}"

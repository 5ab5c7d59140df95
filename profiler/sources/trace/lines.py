"""The user's line of events, found only when asked for: the tree is walked again, as far as them.

The innermost Python call that user code made tells the line; "user code" is any file that is not
torch's, memprof's, an installed package's or generated.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from functools import lru_cache
from typing import Any

from memprof.profiler.model import SourceFrame

from . import _torch_compat as compat
from .columns import EventColumns, ScopeKind

_NOT_USER = re.compile(
    r"^torch/|^<|^(contextlib|functools|threading)\.py$|/site-packages/|torchinductor_"
    r"|(^|/)(memprof|compile_backend|cudagraph_trees|compiled_autograd)/"
)


def frames_of_events(columns: EventColumns, wanted: set[int]) -> dict[int, SourceFrame]:
    """The user's line around each event wanted by number, where a Python call was made from one."""
    found: dict[int, SourceFrame] = {}
    scopes = columns.scopes
    skipped = set(scopes.event[scopes.kind == ScopeKind.COMPILER].tolist())
    number, last = -1, max(wanted, default=-1)
    path: list[Any] = [None]  # the events around, outermost first
    todo = [iter(columns.kineto.experimental_event_tree())]  # what is below each of them
    while todo and number < last:
        event = next(todo[-1], None)
        if event is None:
            todo.pop()
            path.pop()
            continue
        number += 1
        if number in wanted and (frame := _frame(path[1:])) is not None:
            found[number] = frame
        if number not in skipped:
            todo.append(iter(event.children))
            path.append(event)
    return found


def _frame(path: list[Any]) -> SourceFrame | None:
    for event in reversed(path):
        x = event.extra_fields
        if type(x) is compat.PyCall or type(x) is compat.PyCCall:
            found = _user_frame(x.caller)
            if found is None and type(x) is compat.PyCall:
                found = _user_frame(x.callsite)
            if found is not None:
                return found
    return None


def _user_frame(frame: Any) -> SourceFrame | None:
    try:
        name, function = str(frame.file_name), str(frame.function_name)
    except UnicodeDecodeError:
        return None
    if _NOT_USER.search(name):
        return None
    line = int(frame.line_number)
    return SourceFrame(name, line, function, _text(name, line))


@lru_cache(maxsize=4096)
def _text(name: str, line: int) -> str:
    """The text of a line. The profiler takes the folders of ``sys.path`` off file names."""
    for path in (name, *(os.path.join(folder, name) for folder in sys.path)):
        text = linecache.getline(path, line)
        if text:
            return text.strip()
    return ""

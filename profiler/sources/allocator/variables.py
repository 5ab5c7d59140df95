"""Variables of the program that lead to a tensor, in words that a reader finds in his program:
``h, local of forward (model.py:10)``, ``self.net.cache[...], local of run (train.py:52)``,
``losses[...], global of train.py``.

Note [From variables downwards]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Looked at are the local variables of functions that run and the globals of modules, then in breadth
the values of attributes, lists and dictionaries below them. What a closure, a hook, a traceback or
C++ has is not found so: ``objgraph`` and ``gc.get_referrers`` go from an object upwards.

Reading ``frame.f_locals`` makes Python 3.10 to 3.12 keep a dictionary of the variables in the
frame, and whatever they were with it, until the function ends. It is emptied again, unless somebody
else has it: the program's own ``locals()`` is that dictionary.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import sys
import traceback
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from . import _torch_compat as compat
from .where import is_generated, is_internal, nodes_of_buffer

COMPILED = "local of compiled code"
"""Said of a variable of Inductor's code."""

_DEEPEST = 8
"""Attributes and indices from a variable to a tensor, at most."""

_MOST = 300_000
"""Objects that are looked at."""

_BUFFER = re.compile(r"buf\d+$")

_WITHOUT = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
"""Classes of objects that are not looked into."""

_Variable = tuple[Any, str, str]
"""A value, its name, and where that is a variable."""


def variables() -> dict[int, str]:
    """Returns the variable that each tensor is reached from, by the tensor's ``id``; the one with
    the fewest steps, and of these the innermost. To be called ``without_torch_function``."""
    found: dict[int, str] = {}
    seen: set[int] = set()
    roots = [*_locals_of_threads(), *_globals_of_modules()]
    waiting = deque((value, name, where, 0) for value, name, where in roots)
    while waiting and len(seen) < _MOST:
        value, name, where, depth = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), torch.Tensor):
            found[id(value)] = f"{name}, {where}"
        if depth < _DEEPEST:
            parts = ((x, name + how, where, depth + 1) for how, x in _parts(value))
            waiting.extend(part for part in parts if _leads_on(part[0]))
    return found


def _leads_on(value: Any) -> bool:
    """Tells whether a value may be a tensor or have one. By ``type``, since ``isinstance`` asks the
    object."""
    return gc.is_tracked(value) and not issubclass(type(value), _WITHOUT)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Values that another one has, each with the text that leads to it."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return [(".grad", compat.gradient_of(value))]
    if issubclass(kind, dict):
        return [("[...]", x) for x in list(dict.values(value))]
    if issubclass(kind, (list, tuple, set, frozenset, deque)):
        return [("[...]", x) for x in gc.get_referents(value)]
    with contextlib.suppress(Exception):
        attributes = object.__getattribute__(value, "__dict__")
        if type(attributes) is dict:
            return [(f".{name}", x) for name, x in list(attributes.items())]
    return []


def _locals_of_threads() -> list[_Variable]:
    # No variable here has a frame: one that had its own would keep all that it has, tensors too.
    stacks = [list(_locals_of(frame)) for frame in sys._current_frames().values()]
    return [variable for variables in stacks for variable in variables]


def _locals_of(top: types.FrameType) -> Iterator[_Variable]:
    """Yields the local variables of a stack, those of the innermost function first."""
    for frame, line in traceback.walk_stack(top):
        code, file = frame.f_code, frame.f_code.co_filename
        generated = is_generated(file)
        if not code.co_flags & inspect.CO_OPTIMIZED or (is_internal(file) and not generated):
            continue
        place = f"local of {code.co_name} ({os.path.basename(file)}:{line})"
        values = frame.f_locals
        for name, value in list(values.items()):
            nodes = nodes_of_buffer(file, name) if generated and _BUFFER.match(name) else ""
            if _leads_on(value):
                yield value, f"{name}: {nodes}" if nodes else name, COMPILED if generated else place
        # References: this variable, the argument of the call, and the frame.
        if type(values) is dict and sys.getrefcount(values) <= 3:
            values.clear()


def _globals_of_modules() -> Iterator[_Variable]:
    for name, module in list(sys.modules.items()):
        values = vars(module) if type(module) is types.ModuleType else {}
        # A program without a file: in a notebook, or after ``python -c``.
        file = values.get("__file__") or (name if name == "__main__" else None)
        if isinstance(file, str) and not is_internal(file):
            place = f"global of {os.path.basename(file)}"
            yield from ((x, name, place) for name, x in list(values.items()) if _leads_on(x))

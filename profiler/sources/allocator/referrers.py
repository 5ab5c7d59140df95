"""Finds the holders of objects, in words that a reader finds in his program.

``losses[...], global of train.py`` or ``cache of the closure of step (train.py:12), held by
model._forward_hooks[...], global of train.py``.

Note [Who refers to an object]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Python's collector knows who refers to whom, but for local variables of functions that run: these
are read from the stacks of all threads first. From the object upwards it is then a search in
breadth, until something has a name of its own: a global, a local variable, an attribute of a class.

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
import types
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _torch_compat as compat
from .where import is_generated, is_internal, nodes_of_buffer

DEPTH = 16
"""References from an object up to a name, at most."""

WIDTH = 400
"""Objects whose referrers are looked up at once."""

COMPILED = "local of compiled code"
"""Root of a variable of Inductor's code, in a chain."""

NODE, CIRCLE = "node of", "which its attribute"
"""Begin what is said of an object without a name: of the ``ctx`` of an ``autograd.Function``, which
the graph of its result keeps, and of one in a circle, by the attribute that leads back to it."""

AS_KEY = "[a key]"
"""Index of a dictionary's keys, the last choice among ways that lead to a name, since an
optimizer's state has all parameters so."""

_BUFFER = re.compile(r"buf\d+$")

MOST = 60
"""Longest text of a key or a name, in characters."""


class _Reference(NamedTuple):
    """One step upwards: ``holder`` has the object as ``how``."""

    holder: Any
    how: str


@dataclass(frozen=True, slots=True)
class _NamedRoot:
    """Something with a name of its own."""

    name: str
    where: str
    is_class: bool = False


class Referrers:
    """Finds the objects that keep others alive, at the time of the call."""

    def __init__(self) -> None:
        self._locals: dict[int, _NamedRoot] = {}
        self._up: dict[int, list[_Reference]] = {}
        self._known: Mapping[int, tuple[Any, str]] = {}

    def chains(
        self,
        objects: Sequence[Any],
        ignored: Iterable[Any] = (),
        known: Mapping[int, tuple[Any, str]] | None = None,
    ) -> list[str]:
        """Chain of holders of each object, "" if none has a name; ``ignored`` are containers of the
        caller's, ``known`` has by identity an object's holder and its name there, where Python does
        not know it."""
        self._known = known or {}
        self._read_stacks()
        self._read_globals()
        own = (objects, self._up, self._locals, self._known, self.__dict__, self, *ignored)
        own += tuple(self._known.values())
        ours = set(map(id, own))
        frontier = list(objects)
        found = [""] * len(objects)
        open_ = list(range(len(objects)))
        for _ in range(DEPTH):
            frontier = self._look_up(frontier[:WIDTH], ours)
            for i in open_:
                found[i] = self._chain(objects[i])
            open_ = [i for i in open_ if not found[i]]
            if not (frontier and open_):
                break
        for i in open_:
            found[i] = self._chain(objects[i], anyhow=True)
        self._up.clear()
        self._locals.clear()
        self._known = {}
        return found

    def _read_stacks(self) -> None:
        stacks = list(sys._current_frames().values())
        # This very frame is among them. If it had itself at its end, by these variables, all that
        # it has, and those above it have, would wait for the collector: tensors, too.
        try:
            for at in stacks:
                while at is not None:
                    self._read_frame(at)
                    at = at.f_back  # type: ignore[assignment]
        finally:
            stacks.clear()
            at = None  # type: ignore[assignment]

    def _read_globals(self) -> None:
        # The collector would find them too, but for what ``gc.freeze()`` has taken from it.
        for module in list(sys.modules.values()):
            file = vars(module).get("__file__") if type(module) is types.ModuleType else None
            if isinstance(file, str) and not _is_ours(file):
                root = f"global of {os.path.basename(file)}"
                for name, value in list(vars(module).items()):
                    if not _is(value, (types.ModuleType, types.FunctionType, type)):
                        self._locals.setdefault(id(value), _NamedRoot(name, root))

    def _read_frame(self, frame: types.FrameType) -> None:
        code, file = frame.f_code, frame.f_code.co_filename
        generated = is_generated(file)
        if generated:
            where = COMPILED
        elif code.co_flags & inspect.CO_OPTIMIZED and not _is_ours(file):
            where = f"local of {code.co_name} ({_place(file, frame.f_lineno)})"
        else:
            return
        values = frame.f_locals
        for name, value in list(values.items()):
            nodes = nodes_of_buffer(file, name) if generated and _BUFFER.match(name) else ""
            root = _NamedRoot(f"{name}: {nodes}" if nodes else name, where)
            self._locals.setdefault(id(value), root)
        _let_go(values, 4)

    def _look_up(self, frontier: list[Any], ours: set[int]) -> list[Any]:
        """Record the referrers of unnamed objects of ``frontier``; returns the next to look up."""
        wanted = {id(x): x for x in frontier if id(x) not in self._up and id(x) not in self._locals}
        above: list[Any] = []
        for key in wanted:
            self._up[key] = [_Reference(*self._known[key])] if key in self._known else []
            above += (step.holder for step in self._up[key])
        ours = ours | {id(frontier), id(wanted)}
        if not wanted:
            return above
        ours.add(id(above))
        referrers = gc.get_referrers(*wanted.values())
        ours.add(id(referrers))
        for holder in referrers:
            if id(holder) in ours or _is_machinery(holder):
                continue
            held = {id(x) for x in gc.get_referents(holder)} & wanted.keys()
            if not held:
                continue
            for key, how in _as_what(holder, held):
                if len(self._up[key]) < 8:
                    self._up[key].append(_Reference(holder, how))
            if self._root(holder, "") is None:
                above.append(holder)
        return above

    def _root(self, holder: Any, how: str) -> _NamedRoot | None:
        """Root of a chain that ends at ``holder``, a class or a module's globals; else None."""
        if type(holder) is dict:
            name = holder.get("__name__")
            if "__builtins__" in holder or _is_module(holder, name):
                file = holder.get("__file__")
                of = os.path.basename(file) if isinstance(file, str) else str(name)
                return _NamedRoot(how, f"global of {of}")
        if _is(holder, type):
            return _NamedRoot(holder.__name__, f"class in {holder.__module__}", is_class=True)
        return None

    def _chain(self, x: Any, anyhow: bool = False) -> str:
        """The shortest way from ``x`` to a name; ``anyhow`` by keys, too, or else to a closure, to
        the ``ctx`` of an ``autograd.Function``, or into a circle."""
        waiting: deque[tuple[Any, tuple[_Reference, ...]]] = deque([(x, ())])
        seen = {id(x)}
        otherwise: list[str] = []
        while waiting:
            at, path = waiting.popleft()
            root = self._locals.get(id(at))
            if root is not None:
                return _in_words(root, path)
            for step in self._up.get(id(at), ()):
                if step.how == AS_KEY and not anyhow:
                    continue
                root = self._root(step.holder, step.how.strip("[]'") if step.how else "")
                if root is not None:
                    return _in_words(root, path)
                way = (*path, step)
                if id(step.holder) not in seen:
                    seen.add(id(step.holder))
                    waiting.append((step.holder, way))
                    if _is(step.holder, types.FunctionType):
                        otherwise.append(_in_words(None, way))
                    elif _is(step.holder, compat.AutogradContext):
                        name = type(step.holder).__name__.removesuffix("Backward")
                        otherwise.append(_in_words(_NamedRoot("ctx", f"{NODE} {name}", True), way))
                elif any(step.holder is s.holder for s in path) or step.holder is x:
                    otherwise.append(_of_circle(way, way if step.holder is x else way[::-1]))
        return next(filter(None, otherwise), "") if anyhow else ""


def _in_words(root: _NamedRoot | None, path: tuple[_Reference, ...]) -> str:
    """A way, from the name downwards as a program would write it. What a function, a frame or an
    exception has begins a part of its own."""
    parts = [root.name] if root is not None else []
    attribute, skipped = root is not None and root.is_class, False
    for i in range(len(path) - 1, -1, -1):
        holder, how = path[i].holder, path[i].how
        if _is(holder, types.FunctionType):
            parts.append(_of_function(holder, path[:i]))
            skipped = True
        elif _is(holder, types.FrameType):
            code = holder.f_code
            place = _place(code.co_filename, holder.f_lineno)
            parts.append(f"{how}, local of {code.co_name} ({place})")
        elif _is(holder, BaseException):
            parts.append(f"the traceback of a {type(holder).__name__}")
        elif skipped:  # the tuple of a function's cells or defaults
            skipped = False
        else:
            found = _ITEM.fullmatch(how) if attribute else None
            parts[-1] += f".{found[1]}" if found else how
            attribute = not how
    if root is not None:
        parts[0] += f", {root.where}"
    return ", held by ".join(reversed(parts))


def _of_circle(way: tuple[_Reference, ...], from_attribute: tuple[_Reference, ...]) -> str:
    """A way that leads back to where it has been, from the first object of the program's on it; the
    attribute of that which leads back is the first name on ``from_attribute``."""
    for i, (holder, _) in enumerate(way):
        kind = type(holder)
        if kind.__module__.partition(".")[0] not in ("builtins", "collections", "torch"):
            how = next((s.how for s in from_attribute if s.how), "").strip(".[']")
            return _in_words(_NamedRoot(kind.__name__, f"{CIRCLE} {how} keeps", True), way[: i + 1])
    return ""


_ITEM = re.compile(r"\['(\w+)'\]")


def _of_function(function: types.FunctionType, below: tuple[_Reference, ...]) -> str:
    code = function.__code__
    cell = next((id(s.holder) for s in below if _is(s.holder, types.CellType)), None)
    cells = zip(function.__closure__ or (), code.co_freevars, strict=False)
    name = next((name for c, name in cells if id(c) == cell), "")
    what = f"{name} of the closure" if name else "a default"
    return f"{what} of {code.co_name} ({_place(code.co_filename, code.co_firstlineno)})"


def _let_go(values: Any, references: int) -> None:
    """Empty a frame's ``f_locals`` unless somebody has it but the frame, the caller and this call,
    with so many references."""
    if type(values) is dict and sys.getrefcount(values) <= references:
        values.clear()


def _as_what(holder: Any, held: set[int]) -> Iterable[tuple[int, str]]:
    """Identities of the given objects that ``holder`` has, each with its index or name in it."""
    if _is(holder, dict):
        for key, value in list(dict.items(holder)):
            if id(value) in held:
                yield id(value), _key(key)
            if id(key) in held:
                yield id(key), AS_KEY
    elif _is(holder, (list, tuple, set, frozenset, deque)):
        for key in held:
            yield key, "[...]"
    elif _is(holder, types.FrameType):
        code = holder.f_code
        inside = holder.f_locals
        names = {id(v): n for n, v in list(inside.items()) if id(v) in held}
        if inside is not holder.f_globals:
            _let_go(inside, 4)
        for key in held:
            yield key, names.get(key, code.co_name)
    else:
        # Python keeps attributes in the object itself, or in a dictionary of it.
        attributes = _attributes(holder)
        names = {id(v): f".{n}" for n, v in attributes.items() if id(v) in held}
        for key in held:
            inner = id(attributes) == key
            silent = inner or _is(holder, _SILENT)
            unnamed = "" if silent else f" in a {type(holder).__name__}"
            yield key, "" if inner else names.get(key, unnamed)


def _is(x: Any, kinds: type | tuple[type, ...]) -> bool:
    """Tells whether an object is of a class, without asking the object, as ``isinstance`` does."""
    return issubclass(type(x), kinds)


_SILENT = (
    types.CellType,
    types.FunctionType,
    types.MethodType,
    types.TracebackType,
    BaseException,
    type,
)
"""Classes of objects that are left out of a chain, between an object and one with a name."""


def _attributes(holder: Any) -> dict[str, Any]:
    with contextlib.suppress(Exception):
        found = object.__getattribute__(holder, "__dict__")
        return found if type(found) is dict else {}
    return {}


def _key(key: Any) -> str:
    """A key of a dictionary, as an index."""
    if type(key) in (str, int, bool, float) or key is None:
        return f"[{str(key)[:MOST]!r}]" if isinstance(key, str) else f"[{key}]"
    return "[...]"


def _is_module(globals_: dict[str, Any], name: Any) -> bool:
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is not None and getattr(module, "__dict__", None) is globals_


def _is_machinery(holder: Any) -> bool:
    """Tells whether a referrer is none of the program's: frames of ours, modules, iterators of
    ours."""
    if _is(holder, types.FrameType):
        return _is_ours(holder.f_code.co_filename)
    return _is(holder, (types.ModuleType, _Reference, _NamedRoot, Referrers))


_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _is_ours(file: str) -> bool:
    """Tells whether a file is part of this very search, or of torch and what runs programs."""
    return file.startswith(_FOLDER) or is_internal(file)


def _place(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"

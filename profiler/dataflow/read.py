"""One pass over a profiler's event tree into columns.

Note [Reading an event tree]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every attribute of an event is a call into C++ that makes a Python object, 0.1 to 0.8 µs
each: merely visiting a tree costs about 1 µs an event. So each event is visited once,
only what the analysis needs is read, and no wrapper outlives its visit.

* `extra_fields` gives the payload, and its type says what the event is; `typed` would
  make a tuple and an enumeration value as well.
* A name decides what an event can be, so what follows from a name is kept by name.
* The scope of an operator is read only where its name has no schema: what the dispatcher
  calls always has scope FUNCTION.
* Sizes and strides are read only of storages that were not yet seen to be allocated.
* Below an entry into the compiler nothing is visited: it makes up to a hundred times as
  many events as the model. What it allocates for good shows up as storages that were
  there before, and `skipped_ns` says how long it ran.

Lines are found only when asked for: the tree is walked again, with the same numbering, as far as
the wanted events. The innermost Python call that user code made tells the line; "user code" is any
file that is not torch's, memprof's, an installed package's or generated.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any

from memprof.profiler.model import SourceFrame
from memprof.profiler.process_hooks import collector_paused

from . import _torch_compat as compat
from .columns import (
    AMBIGUOUS,
    ENGINE,
    FORWARD,
    NODE,
    READ,
    STATE,
    WRITTEN,
    EventColumns,
    ScopeKind,
)
from .tables import GrowingTables, signed

# What else than a ``ScopeKind`` the name of an operator event or Python call says about it.
_PLAIN, _ENGINE, _FUNCTION = -1, -2, -3
_PREFIXES = (
    (compat.ENGINE_PREFIX, _ENGINE),
    (compat.COMPILED_FUNCTION, _FUNCTION),
    (compat.OPTIMIZER_STEP_PREFIX, ScopeKind.OPTIMIZER_STEP),
    (compat.PROFILER_STEP_PREFIX, ScopeKind.PROFILER_STEP),
    (compat.COMPILED_CALL_PREFIX, ScopeKind.COMPILED_CALL),
)


def read_events(result: Any, *, skip_compiler: bool = True) -> EventColumns:
    """Columns of a finished profiler run.

    Args:
        result: what ``torch.profiler.profile`` was, or its ``_ProfilerResult``.
        skip_compiler: do not look below entries into the compiler.

    Raises:
        TypeError, ValueError: see ``_torch_compat.event_tree``.
    """
    reader = _Reader(skip_compiler)
    with collector_paused():  # millions of objects are made and no cycle
        for thread, roots in groupby(compat.event_tree(result), lambda e: signed(e.start_tid)):
            reader.tables.threads.append((reader.events, thread))
            reader.walk(roots)
    return reader.tables.columns(reader.events, skip_compiler, compat.kineto_result(result))


Signature = tuple[Any, ...]
"""Of each argument of a call ``TensorMetadata``, ``list``, a scalar type, or None."""
_Schemas = Callable[[str], tuple[Any, ...]]

_STATE_ARGUMENTS = frozenset({"running_mean", "running_var"})


def _match(schemas: _Schemas, name: str, signature: Signature) -> tuple[bool, tuple[int, ...]]:
    """Whether a call can be one of an operator, and what it does to each argument.

    The profiler records no overload, so the call is held against every overload's schema; in
    practice one remains. WRITTEN is what any of those that remain writes to.
    """
    found = [
        s
        for s in schemas(name)
        if len(s.arguments) == len(signature)
        and all(compat.accepts(a.type, o) for a, o in zip(s.arguments, signature, strict=True))
    ]
    if not found:
        return False, (AMBIGUOUS,) * len(signature)
    effects = []
    for overloads in zip(*(s.arguments for s in found), strict=True):
        written = any(a.alias_info is not None and a.alias_info.is_write for a in overloads)
        state = any(a.name in _STATE_ARGUMENTS for a in overloads)
        effects.append((WRITTEN if written else READ) | (STATE if state else 0))
    return True, tuple(effects)


def _op_kind(schemas: _Schemas, name: str) -> int:
    """What an operator event is, by its name."""
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    return _PLAIN if schemas(name) else ScopeKind.RANGE


def _python_kind(skip_compiler: bool, name: str) -> int:
    """What a Python call is, by its name."""
    if name.startswith(compat.MODULE_PREFIX):
        return ScopeKind.MODULE
    if name.endswith(compat.OPTIMIZER_FUNCTION):
        return ScopeKind.OPTIMIZER_STEP
    if compat.generated_module(name):
        return ScopeKind.GENERATED_CODE
    compiler = skip_compiler and compat.is_compiler_frame(name)
    return ScopeKind.COMPILER if compiler else _PLAIN


class _Reader:
    def __init__(self, skip_compiler: bool) -> None:
        self.tables = GrowingTables()
        # Nothing of the reader's own refers to it: its tables go with it. A run of a million
        # calls asks for a few hundred matches.
        schemas = cache(compat.registered_schemas)
        self.match = cache(partial(_match, schemas))
        self.op_kind = cache(partial(_op_kind, schemas))
        self.python_kind = cache(partial(_python_kind, skip_compiler))
        self.events = 0

    # -- the pass -------------------------------------------------------------------

    def walk(self, roots: Iterable[Any]) -> None:
        """Visit every event below ``roots`` once, parents first, children in order."""
        # Everything used at each event is a local: this loop is most of the analysis.
        OP, ALLOC, PYCALL = compat.TorchOp, compat.Allocation, compat.PyCall
        METADATA, BACKWARD = compat.TensorMetadata, compat.BACKWARD_FUNCTION
        tables, match, names = self.tables, self.match, self.tables.names
        latest, allocated, on_cpu = tables.latest, tables.allocated, tables.on_cpu
        key_alloc, key_dev = tables.key_alloc, tables.key_dev
        find, tensor, new_leaf, new_scope = (
            tables.find, tables.tensor, tables.new_leaf, tables.new_scope,
        )  # fmt: skip
        op_kind, python_kind = self.op_kind, self.python_kind
        use_key, use_effect = (c.append for c in tables.use)
        (al_event, al_leaf, al_key, al_size, al_dev, al_start, al_op, al_scope) = (
            c.append for c in tables.alloc
        )

        stack: list[tuple[Iterator[Any], int, int, int, int]] = []
        events = iter(roots)
        # The context of the events being visited: the leaf they are below, what part of
        # the backward they are in, the scope row and the operator around them.
        leaf, backward, scope, op = -1, FORWARD, -1, -1
        key: Any  # a number, or a list of them
        number = self.events - 1
        while True:
            for event in events:
                number += 1
                x = event.extra_fields
                type_ = type(x)
                if type_ is ALLOC:
                    start, ptr, size = event.start_time_ns, x.ptr, x.alloc_size
                    id, allocation = x.id, x.allocation_id
                    key = -1
                    if id is not None and allocation is not None:
                        key = latest[id] if id < len(latest) else -1
                        if key < 0 or key_alloc[key] != allocation:
                            key = find(id, allocation, ptr, x.device)
                    if key >= 0:
                        allocated[key] = 1
                        device = key_dev[key]
                    else:
                        device = tables.device(x.device)
                        tables.unnamed.append(signed(ptr))
                    al_event(number)
                    al_leaf(leaf if leaf >= 0 else new_leaf(number, start, -1, backward, scope, -1))
                    al_key(key)
                    al_size(size)
                    al_dev(device)
                    al_start(start)
                    al_op(op)
                    al_scope(scope)
                    if not on_cpu[device]:
                        tables.note_allocator(x)
                    continue

                below, back, inside, around = leaf, backward, scope, op
                if type_ is OP:
                    name = x.name
                    signature: list[Any] = []
                    keys: list[Any] = []
                    for value in x.inputs:
                        t = type(value)
                        if t is METADATA:
                            id = value.id
                            key = latest[id] if id is not None and id < len(latest) else -1
                            if (
                                key < 0
                                or not allocated[key]
                                or key_alloc[key] != value.allocation_id
                            ):
                                key = tensor(value)
                            signature.append(METADATA if key >= 0 else None)
                            keys.append(key)
                        elif t is list:
                            some = [tensor(v) for v in value if type(v) is METADATA]
                            whole = len(some) == len(value) and -1 not in some
                            signature.append(list if whole else tuple)
                            keys.append(some)
                        else:
                            signature.append(None if value is None else t)
                            keys.append(-1)
                    is_leaf, effects = match(name, tuple(signature))
                    children = event.children
                    kind = op_kind(name)
                    if kind == _PLAIN:
                        around = names[name]
                    elif kind == _ENGINE:
                        back = back or ENGINE
                    else:
                        if x.scope == BACKWARD:
                            is_leaf, back = True, NODE
                            if name == compat.ACCUMULATE_GRAD and children:
                                self.accumulate(children[0])
                        elif kind != _FUNCTION:
                            inside = new_scope(kind, event, number, name, scope, back)
                        if kind == _FUNCTION:
                            tables.note_function(event, keys, back)
                    if leaf < 0 and is_leaf:
                        below = new_leaf(
                            number,
                            event.start_time_ns,
                            names[name],
                            back,
                            inside,
                            x.sequence_number,
                        )
                    if below >= 0:
                        for key, effect in zip(keys, effects, strict=True):
                            if type(key) is list:
                                for one in key:
                                    if one >= 0:
                                        use_key(one)
                                        use_effect(effect)
                            elif key >= 0:
                                use_key(key)
                                use_effect(effect)
                else:
                    if type_ is PYCALL:
                        try:
                            name = event.name
                        except UnicodeDecodeError:  # a name of any bytes, made by generated code
                            name = ""
                        kind = python_kind(name)
                        if kind != _PLAIN:
                            if kind == ScopeKind.COMPILER:
                                new_scope(kind, event, number, name, scope, back)
                                tables.skipped_ns += max(event.duration_time_ns, 0)
                                continue
                            inside = self.enter_python(kind, event, x, number, name, scope, back)
                    elif type_ is compat.OutOfMemory:
                        tables.oom.append((number, event.start_time_ns, op, scope))
                    children = event.children

                if children:
                    stack.append((events, leaf, backward, scope, op))
                    events = iter(children)
                    leaf, backward, scope, op = below, back, inside, around
                    break
            else:
                if not stack:
                    break
                events, leaf, backward, scope, op = stack.pop()
        self.events = number + 1

    # -- what is rare ---------------------------------------------------------------

    def enter_python(
        self, kind: int, event: Any, x: Any, number: int, name: str, scope: int, backward: int
    ) -> int:
        """Note the tensors of a module or optimizer call; the scope for what is below it."""
        tables, identity = self.tables, 0
        if x.module is not None:
            identity = int(x.module.self_ptr)
            for _, parameter, gradient in x.module.parameters:
                tables.member(parameter, tables.parameters)
                tables.member(gradient, tables.gradients)
        if x.optimizer is not None:
            for parameter, gradient, state in x.optimizer.parameters:
                tables.member(parameter, tables.parameters)
                tables.member(gradient, tables.gradients)
                for _, t in state:
                    tables.member(t, tables.states)
        if kind == ScopeKind.OPTIMIZER_STEP:  # only shows the tensors: the step is not below it
            return scope
        return tables.new_scope(kind, event, number, name, scope, backward, identity)

    def accumulate(self, first: Any) -> None:
        """Note the gradient that an AccumulateGrad node takes or adds to."""
        x, tables = first.extra_fields, self.tables
        if type(x) is compat.TorchOp and x.name in compat.ACCUMULATE_GRAD_OPS:
            inputs = x.inputs
            if inputs and type(inputs[0]) is compat.TensorMetadata:
                tables.member(inputs[0], tables.gradients)


# -- lines ----------------------------------------------------------------------------------

_NOT_USER = re.compile(
    r"^torch/|^<|^(contextlib|functools|threading)\.py$|/site-packages/|torchinductor_"
    r"|(^|/)(memprof|compile_backend|cudagraph_trees|compiled_autograd)/"
)


def events_by_number(
    columns: EventColumns, wanted: set[int]
) -> Iterator[tuple[int, Any, list[Any]]]:
    """Number, event and the events around it, outermost first, of events wanted by number.

    The list of the events around it is reused: copy what is to be kept.
    """
    if not wanted:
        return
    number, last = -1, max(wanted)
    stack: list[Iterator[Any]] = [iter(compat.event_tree(columns.kineto))]
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
        if type(x) is compat.PyCall and columns.skip_compiler:
            with contextlib.suppress(UnicodeDecodeError):
                if compat.is_compiler_frame(event.name):
                    continue
        children = event.children
        if children:
            stack.append(iter(children))
            path.append(event)


def frames_of_events(columns: EventColumns, wanted: set[int]) -> dict[int, SourceFrame]:
    """The user's line around each wanted event, where a Python call was made from one.

    The profiler takes the folders of ``sys.path`` off file names; they are put on again for
    reading the line's text, not for its name.
    """
    found = ((number, _frame(path)) for number, _, path in events_by_number(columns, wanted))
    return {number: frame for number, frame in found if frame is not None}


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
    for path in (name, *(os.path.join(folder, name) for folder in sys.path)):
        text = linecache.getline(path, line)
        if text:
            return text.strip()
    return ""

"""Observation of memory during one call: a copy of the generated wrapper that reports allocations
and frees, and the hooks that it reports to.

The copy runs in the *same* module globals, with the same kernels, constants and streams,
and keeps the original line numbers, so it computes the same values and its tracebacks
still point into the generated file. Only calls to hooks, which never raise, are added:

    hooks.at(line)                    before each statement
    hooks.bound(name, value)          after ``name = …``
    hooks.dropped(names)              after ``del names``
"""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from memprof.profiler.model import Origin

from ...session.storage_identities import StorageIdentities
from ..provenance.generated_code import (
    Clone,
    call_function,
    clone_factory,
    target_names,
    wrapper_functions,
)
from .allocator_events import AllocatorEvents
from .program_builder import Bound, CallTrace, Delta, ObservedStorage, StatementTrace

_HOOKS = "__memprof_hooks__"


InstrumentedCall = Callable[[Any], Clone]
"""Takes hooks and returns a copy of the generated ``call`` that calls them."""


def instrument(source: str, module_globals: dict[str, Any]) -> InstrumentedCall | None:
    """Build the clone of a generated module's ``call``; None if the module has no Python wrapper
    (C++ wrapper code). Its globals are used as they are and not changed."""
    tree = ast.parse(source)
    if call_function(tree) is None:
        return None
    for _, function in wrapper_functions(tree):
        function.body = _instrumented(function.body)
    return clone_factory(tree, [_HOOKS], module_globals)


def _instrumented(body: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for st in body:
        for part in ("body", "orelse"):
            if isinstance(inner := getattr(st, part, None), list):
                setattr(st, part, _instrumented(inner))
        if not isinstance(st, ast.FunctionDef):
            out.append(_hook(st, "at", ast.Constant(st.lineno)))
        out.append(st)
        # A list of arguments for a partition makes nothing and owns nothing.
        if isinstance(st, ast.Assign) and not isinstance(st.value, (ast.List, ast.Tuple)):
            names = [n for t in st.targets for n in target_names(t)]
            out.extend(_hook(st, "bound", ast.Constant(n), ast.Name(n, ast.Load())) for n in names)
        elif isinstance(st, ast.Delete):
            names = [n for t in st.targets for n in target_names(t)]
            if names:
                constants: list[ast.expr] = [ast.Constant(n) for n in names]
                out.append(_hook(st, "dropped", ast.Tuple(constants, ast.Load())))
    return out


def _hook(at: ast.stmt, name: str, *arguments: ast.expr) -> ast.stmt:
    # Built, not parsed: a large graph has thousands of statements.
    function = ast.Attribute(ast.Name(_HOOKS, ast.Load()), name, ast.Load())
    statement = ast.Expr(ast.Call(function, list(arguments), []))
    for node in ast.walk(statement):
        ast.copy_location(node, at)
    return statement


_EXCLUDED = -1
"""Mark of allocations that are not the graph's."""


class CallRecorder:
    """The hooks of one instrumented call. None raises into the generated code: the first error is
    kept in ``error``, later reports are ignored, and the call goes on."""

    def __init__(self, identities: StorageIdentities, key: tuple[int, ...]) -> None:
        self.trace = CallTrace(key)
        self.error: Exception | None = None
        self._identities = identities
        self._allocator = AllocatorEvents()

    # --- hooks ----------------------------------------------------------------------------

    def at(self, line: int) -> None:
        """Begin the statement at ``line``."""
        if self.error is None:
            with self._keeping_errors():
                self.trace.statements.append(StatementTrace(line))
                if self._allocator.started:
                    self._allocator.mark(len(self.trace.statements) - 1)

    def exclude(self) -> None:
        """Marks what is allocated until the next statement as not the graph's."""
        if self.error is None and self._allocator.started:
            with self._keeping_errors():
                self._allocator.mark(_EXCLUDED)

    def bound(self, name: str, value: object) -> None:
        """Note that ``name`` was assigned ``value``: a tensor, a sequence of these, or anything."""
        if self.error is None:
            with self._keeping_errors():
                for storage in _storages(value):
                    number = self._identities.identity(storage)
                    bound = Bound(name, number, storage.nbytes(), str(storage.device))
                    self.trace.statements[-1].bound.append(bound)

    def dropped(self, names: tuple[str, ...]) -> None:
        """Note that ``names`` were deleted."""
        self.trace.statements[-1].dropped.extend(names)

    def _freed(self, storage: int) -> None:
        self.trace.statements[-1].freed.append(storage)

    # --- the call -------------------------------------------------------------------------

    def run(
        self,
        call: Callable[[list[Any]], Any],
        inputs: list[Any],
        input_names: Sequence[str],
        constants: Mapping[str, torch.Tensor],
    ) -> Any:
        """Run ``call(inputs)``, which empties ``inputs``, and record it; raises only what that
        raises. ``constants`` are the tensors that the generated module holds."""
        self._identities.listen(self._freed)
        with self._keeping_errors():
            self._enter(inputs, input_names, constants)
            self._allocator.start()
        begin = time.perf_counter_ns()
        try:
            out = call(inputs)
        finally:
            self.trace.host_ns = time.perf_counter_ns() - begin
            self._leave()
        with self._keeping_errors():
            returned = out if isinstance(out, (tuple, list)) else (out,)
            first = [next(iter(_storages(o)), None) for o in returned]
            self.trace.outputs = [s if s is None else self._identities.identity(s) for s in first]
        return out

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    def _leave(self) -> None:
        self._identities.unlisten(self._freed)
        with self._keeping_errors():
            self.trace.allocator = self._allocator.started
            for mark, nbytes, device in self._allocator.stop() if self._allocator.started else ():
                if mark != _EXCLUDED:
                    self.trace.statements[mark].deltas.append(Delta(nbytes, device))

    def _enter(
        self, inputs: Sequence[Any], names: Sequence[str], constants: Mapping[str, torch.Tensor]
    ) -> None:
        found: dict[int, ObservedStorage] = {}

        def storage_at_entry(
            storage: torch.UntypedStorage, origin: Origin, name: str
        ) -> ObservedStorage:
            number = self._identities.identity(storage)
            new = ObservedStorage(storage.nbytes(), str(storage.device), origin, name, number)
            return found.setdefault(number, new)

        for index, value in enumerate(inputs):
            name = names[index] if index < len(names) else f"input {index}"
            for storage in _storages(value):
                found_in = storage_at_entry(storage, Origin.INPUT, name)
                found_in.inputs = (*found_in.inputs, index)
        for name, tensor in constants.items():
            for storage in _storages(tensor):
                storage_at_entry(storage, Origin.EXTERNAL, name)
        self.trace.entry = list(found.values())


def _storages(value: object) -> Iterable[torch.UntypedStorage]:
    """Storages of a tensor, or of the tensors in nested sequences; sparse tensors and the opaque
    packed weights of oneDNN have none to speak of."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value.untyped_storage()
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _storages(item)

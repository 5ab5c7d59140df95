"""Observation of memory during one call: the hooks that an instrumented copy of the generated
wrapper (``provenance/generated_code.py``) reports allocations and frees to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from memprof.profiler.model import Origin

from ...session.storage_identities import StorageIdentities
from .allocator_events import AllocatorEvents
from .program_builder import Bound, CallTrace, Delta, ObservedStorage, StatementTrace

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
            # Of the hooks this one and the next are called thousands of times.
            try:
                self.trace.statements.append(StatementTrace(line))
                if self._allocator.started:
                    self._allocator.mark(len(self.trace.statements) - 1)
            except Exception as error:
                self.error = error

    def exclude(self) -> None:
        """Marks what is allocated until the next statement as not the graph's."""
        if self.error is None and self._allocator.started:
            with self._keeping_errors():
                self._allocator.mark(_EXCLUDED)

    def bound(self, name: str, value: object) -> None:
        """Note that ``name`` was assigned ``value``: a tensor, a sequence of these, or anything."""
        if self.error is None:
            try:
                for storage in _storages(value):
                    number = self._identities.identity(storage)
                    bound = Bound(name, number, storage.nbytes(), str(storage.device))
                    self.trace.statements[-1].bound.append(bound)
            except Exception as error:
                self.error = error

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

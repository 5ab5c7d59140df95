"""``track_operation(name)``: what users put around their code, as context manager or decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from .operations import CURRENT, Operation, OperationLog

_Function = TypeVar("_Function", bound=Callable[..., Any])


class TrackedOperation:
    """``with tracker.track_operation(name):`` and ``@tracker.track_operation(name)``.

    The object holds no state of an invocation that matters, so it can be nested in itself and used
    by several threads and tasks at once. Inside code that Dynamo compiles it does nothing, so
    it neither breaks a graph nor appears in one.
    """

    __slots__ = ("_log", "_open", "name")

    def __init__(self, log: Callable[[], OperationLog | None], name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"the name of an operation is {name!r}; it must be a text")
        self.name = name
        self._log = log
        self._open: list[Operation] = []

    def __enter__(self) -> TrackedOperation:
        if torch.compiler.is_dynamo_compiling():
            return self
        log = self._log()
        operation = log.begin(self, self.name) if log is not None else None
        if operation is not None:
            self._open.append(operation)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if torch.compiler.is_dynamo_compiling() or not self._open:
            return
        # Ours is the innermost one of this context; if the context was left in the meantime
        # (a generator that another thread finishes), the last one opened.
        operation = CURRENT.get()
        while operation is not None and operation.owner is not self:
            operation = operation.parent
        if operation is None:
            operation = self._open[-1]
        self._open.remove(operation)
        operation.log.end(operation, kind is not None)

    async def __aenter__(self) -> TrackedOperation:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function or coroutine function."""
        log, name = self._log, self.name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{getattr(function, '__qualname__', function)} is a generator, whose body runs "
                "in pieces between its caller's: put `with tracker.track_operation(...)` around "
                "what is to be measured"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with TrackedOperation(log, name):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with TrackedOperation(log, name):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]

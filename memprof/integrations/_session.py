"""Common part of the callbacks of training frameworks."""

from __future__ import annotations

from functools import partial
from typing import Any

from memprof.compile_backend.session.profiling import ProfilingSession


class SessionCallback:
    """A profile of each training run of a framework. Its methods have the names that the frameworks
    call.

    Args:
        path, options: as for ``memprof.profile``: ``steps="steps.{rank}.jsonl"`` for a record of
            steps, ``on_oom="oom.{rank}.memprof"`` for a report at out of memory.

    Attributes:
        session: of the run that is under way, or was last; None before the first.
    """

    def __init__(self, path: Any = None, **options: Any) -> None:
        self.session: ProfilingSession | None = None
        self._new_session = partial(ProfilingSession, path, **options)
        self._new_session()  # What is wrong with them is told here, and not in the run.

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin a profile; one that an exception has left open ends."""
        self.on_train_end()
        self.session = self._new_session().__enter__()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the profile."""
        self.on_exception(None, None, None)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException | None) -> None:
        """End the profile, which says by what."""
        if self.session is not None:
            self.session.__exit__(type(exception), exception, None)

    on_train_start = on_train_begin

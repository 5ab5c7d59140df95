"""``memprof.profile()`` and ``memprof.report()``."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType
from typing import TextIO

from memprof.compile_backend.runtime import RUNTIME, Session
from memprof.profiler.errors import ProfileError
from memprof.profiler.file import check_writable, write_profile
from memprof.profiler.model import Profile
from memprof.profiler.report import render_text, summarize
from memprof.profiler.report.terminal import printable, style_of

log = logging.getLogger("memprof")

DEFAULT_MAX_CALLS = 1_000_000


class ProfilingSession:
    """A span of a program whose compiled calls make one profile; see ``profile``."""

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, max_calls: int = DEFAULT_MAX_CALLS
    ) -> None:
        if max_calls < 0:
            raise ValueError(f"max_calls is {max_calls}; it must be 0 or more")
        self.path = path
        self._max_calls = max_calls
        self._session: Session | None = None
        self._result: Profile | None = None

    def __enter__(self) -> ProfilingSession:
        if self._session is not None:
            raise RuntimeError(
                "this profiling session was entered before; call memprof.profile() again"
            )
        if self.path is not None:
            check_writable(self.path)
        self._session = RUNTIME.open_session(self._max_calls)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._result = RUNTIME.profile(self._session)
        RUNTIME.close_session()
        if self.path is None:
            return
        try:
            write_profile(self._result, self.path)
        except ProfileError as failure:
            # The training that ran inside has succeeded; a full disk must not undo that.
            log.error("%s The profile is still in memory: session.save(PATH).", failure)

    def profile(self) -> Profile:
        """The profile: of the whole session once it has ended, of what is past before that.

        Raises:
            RuntimeError: the session has not begun.
        """
        if self._result is not None:
            return self._result
        if self._session is None:
            raise RuntimeError("this session has not begun: use `with memprof.profile() as s:`")
        return RUNTIME.profile(self._session)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile; gzip if ``path`` ends in ``.gz``.

        Raises:
            ProfileNotWritableError: it cannot be written; nothing is left behind.
        """
        write_profile(self.profile(), path)

    def report(self, *, top: int = 10, file: TextIO | None = None) -> None:
        """Print the report of this session."""
        _print(self.profile(), top, file)


def profile(
    path: str | os.PathLike[str] | None = None, *, max_calls: int = DEFAULT_MAX_CALLS
) -> ProfilingSession:
    """Context manager: profile what compiled functions do inside it.

    Args:
        path: where to write the profile at the end; gzip if it ends in ``.gz``. Checked
            on entry, so that an unwritable folder is found before the training, not after.
            If writing fails at the end all the same, that is logged and not raised.
        max_calls: how many calls to keep one by one; earlier ones are only counted.

    Raises:
        ProfileNotWritableError: on entry, ``path`` cannot be written.
    """
    return ProfilingSession(path, max_calls=max_calls)


def current_profile() -> Profile:
    """The profile of this process so far, without any ``with``: the last 65,536 calls."""
    return RUNTIME.profile()


def report(*, top: int = 10, file: TextIO | None = None) -> None:
    """Print the report of this process so far.

    Args:
        top: rows per table.
        file: where to; standard output by default.
    """
    _print(current_profile(), top, file)


def _print(profile: Profile, top: int, file: TextIO | None) -> None:
    out = file if file is not None else sys.stdout
    out.write(printable(render_text(summarize(profile), top=top, **style_of(out)), out))

"""An exception that ended a simulated process, as data."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection

import msgspec

CAUGHT = "CaughtOutOfMemory"
"""Kind of a failure after a process of the run caught that the device's memory was too small."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that nobody caught, and its traceback as Python would print it;
    ``out_of_memory`` if the device's memory was too small."""

    kind: str
    message: str
    trace: str
    out_of_memory: bool = False


def failure_of(error: BaseException, ours: Collection[str] = ()) -> Failure:
    """Describes ``error``, with the traceback from the first frame on that is in none of the files
    of ``ours``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    torch, cause = sys.modules.get("torch"), error
    # The script may have raised something else where the device's memory was too small.
    while torch is not None and not isinstance(cause, torch.OutOfMemoryError):
        following = cause.__cause__ or cause.__context__
        if following is None:
            break
        cause = following
    return Failure(
        kind=type(error).__name__,
        message=str(error),
        trace="".join(traceback.format_exception(type(error), error, trace)),
        out_of_memory=torch is not None and isinstance(cause, torch.OutOfMemoryError),
    )


def uncaught() -> Failure | None:
    """The exception that ends this process, asked as it ends: in a finalizer of multiprocessing's,
    or after Python has printed it; None where none does."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        # What ends a process after an exception, as torch.multiprocessing.spawn does, has that one.
        error = error.__context__ if error.code else None
    return None if error is None else failure_of(error)

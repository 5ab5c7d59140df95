"""The account of the moment at which an allocation fails."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from memprof.profiler.doing import current as doing_now
from memprof.profiler.model import DeviceAccount, Failure, SourceFrame

from . import _torch_compat as compat
from . import known
from .account import source_of
from .failure import Request, explain_failure, reliefs
from .holders import Holders
from .observer import OutOfMemoryEvent
from .present import unwatched_account, whose
from .watch import Watch
from .where import where

log = logging.getLogger("memprof")

UNWATCHED = "(known with eager=True)"
"""What to say of the line that asked for a block, where nobody followed the device."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What is known of a line of generated code.

    Attributes:
        graph: label of its graph.
        node: FX node whose memory the line asks for; empty if not known.
        frame: line of the program of that node.
    """

    graph: str
    node: str = ""
    frame: SourceFrame | None = None


Describe = Callable[[str, int], Compiled | None]
"""Says of a file and a line of it what is known of it as generated code."""


def account_of(
    event: OutOfMemoryEvent, watch: Watch | None = None, describe: Describe | None = None
) -> DeviceAccount:
    """Everything that is reserved on the device now, and why the request did not fit.

    To be called where the request fails, on the thread that made it. Takes host memory alone.

    Args:
        event: what the allocator says.
        watch: that follows the device, so that each block has the line that asked for it; without
            one it has who holds it now.
        describe: knows generated code.
    """
    operation = compat.current_operation()
    segments, settings = compat.segments_now()
    segments = [s for s in segments if s["device"] == event.device]
    holders = Holders(also=operation)
    holders.name()
    otherwise = whose(holders, segments)
    account = None
    requested = 0
    if watch is not None:
        try:
            account, requested = watch.account_now(event.device, otherwise)
        except LookupError:
            pass
        except Exception as e:
            # The history may be somebody else's by now; what lies there is known without it.
            log.warning("memprof cannot say which lines asked: %s: %s", type(e).__name__, e)
    if account is None:
        look = known.of_all(*known.modules_and_optimizers())
        account = unwatched_account(event.device, segments, settings, look, otherwise)
        account.rows = [replace(r, holder=r.holder or UNWATCHED) for r in account.rows]
    doing = doing_now()
    pool = None if torch.cuda.is_current_stream_capturing() else (0, 0)
    if doing is not None:
        pool = doing.pool
    total = account.total
    stream = torch.cuda.current_stream(event.device).cuda_stream
    request = Request(
        *(event.device, event.wanted, event.allowed, total, event.free, stream, pool, requested)
    )
    found = _asked_by(explain_failure(request, segments), operation, describe)
    found = replace(
        found,
        doing=doing.what if doing is not None else "",
        thread=threading.current_thread().name,
        time_ns=time.time_ns(),
    )
    expandable = any(s.get("is_expandable", False) for s in segments)
    helps = reliefs(found, account.rows, phase=account.phase, expandable=expandable)
    account.failure = replace(found, reliefs=helps)
    account.ended = "an allocation failed"
    return account


def _asked_by(f: Failure, operation: object, describe: Describe | None) -> Failure:
    """``f`` with what program text asked for it."""
    frames = list(_frames(sys._getframe()))
    at = where(frames)
    compiled = None
    if at.generated is not None and describe is not None:
        compiled = describe(at.generated.file, at.generated.line)
    frame = at.line
    if compiled is not None and compiled.frame is not None:
        frame = compiled.frame
    # A backward runs in threads of autograd's own, and Python waits in another one.
    name = type(operation).__name__ if operation is not None else ""
    called_from = _line_of_backward() if name else None
    if frame is not None and at.generated is None and frame == called_from:
        frame = None
    return replace(
        f,
        frame=source_of(frame),
        modules=" > ".join(at.modules),
        nodes=(compiled.node if compiled is not None else "") or at.nodes,
        graph=compiled.graph if compiled is not None else "",
        operation=name,
        called_from=source_of(called_from),
    )


def _frames(frame: types.FrameType) -> Iterator[SourceFrame]:
    """A stack, innermost first, with the program's own frames behind those of generated code."""
    for at, line in traceback.walk_stack(frame):
        code = at.f_code
        yield SourceFrame(code.co_filename, line, code.co_name)
        yield from compat.frames_of_generated(code.co_filename, line)


def _line_of_backward() -> SourceFrame | None:
    """The line of the program that has called ``backward()`` or ``grad()``, in whatever thread."""
    # No variable here has a frame: one that had its own would keep all that it has.
    stacks = [list(_frames(frame)) for frame in sys._current_frames().values()]
    for frames in stacks:
        if any(f.function == "_engine_run_backward" for f in frames):
            return where(frames).line
    return None

"""Kernels in a trace that ``torch.profiler`` wrote (``export_chrome_trace``)."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from memprof.profiler.model.kernel import Kernel
from memprof.profiler.support.errors import ProfileInvalidError
from memprof.profiler.support.writing import StrPath

from .reading import LIMIT, read_file, too_large

_LAUNCHES = ("cuda_runtime", "cuda_driver")
_PACKED = zlib.MAX_WBITS | 16
"""zlib's word for a file of gzip."""


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = {}


class _Trace(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]
    base_time_nanoseconds: int = 0


def read_kernels(path: StrPath) -> list[Kernel]:
    """The kernels of a trace, by the time at which they began.

    Raises:
        ProfileUnreadableError: as ``read_file``.
        ProfileInvalidError: it is no trace.
    """
    data = read_file(path)
    try:
        if data.startswith(b"\x1f\x8b"):
            data = zlib.decompressobj(_PACKED).decompress(data, LIMIT + 1)
            if len(data) > LIMIT:
                raise too_large(path, "it unpacks to")
        trace = msgspec.json.decode(data, type=_Trace)
        return sorted(_kernels(trace), key=lambda kernel: kernel.start_ns)
    except (msgspec.MsgspecError, zlib.error, TypeError, ValueError, OverflowError) as e:
        what = "give what torch.profiler's export_chrome_trace wrote"
        raise ProfileInvalidError(path, f"not a trace of torch.profiler ({e}): {what}") from e


def _kernels(trace: _Trace) -> list[Kernel]:
    def since_1970(us: float) -> int:
        return trace.base_time_nanoseconds + round(us * 1000)

    launched = {
        e.args["correlation"]: since_1970(e.ts)
        for e in trace.trace_events
        if e.cat in _LAUNCHES and "correlation" in e.args
    }
    return [
        Kernel(
            e.name,
            int(e.args.get("device", 0)),
            int(e.args.get("stream", 0)),
            since_1970(e.ts),
            since_1970(e.ts + e.dur),
            launched.get(e.args.get("correlation")),
            str(e.args.get("graph", "")),
            str(e.args.get("nodes", "")),
        )
        for e in trace.trace_events
        if e.cat == "kernel"
    ]

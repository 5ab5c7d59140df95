"""A failed allocation in words: who asked, why it did not fit."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.model import AllocationFailure, DeviceAccount, SourceFrame, WhyNot

from .format import format_bytes, shorten_path
from .section import Show


def line_of(frame: SourceFrame | None) -> str:
    """A line, without its text."""
    return f"{shorten_path(frame.file)}:{frame.line}" if frame is not None else ""


def asked(f: AllocationFailure, show: Show) -> str:
    if f.requested:
        return show(f.requested)
    return f"up to {show(f.wanted)}"


def asker(f: AllocationFailure) -> str:
    """Origin of the failed request, in a phrase that follows a verb: "by …", "at …", "in …"."""
    called_from = f.called_from if f.called_from != f.frame else None
    parts = (
        ("by", f.nodes or f.operation),
        ("at", line_of(f.frame)),
        ("in the backward() of", line_of(called_from)),
        ("in", f.graph or f.modules),
    )
    text = " ".join(f"{how} {what}" for how, what in parts if what)
    return text or f"by C++ code in the thread {f.thread or 'of nobody'}"


def why(a: DeviceAccount, f: AllocationFailure, show: Show) -> str:
    """Reason why the request did not fit, in a sentence without its full stop."""
    wanted, free = show(f.wanted), show(f.left(a.reserved))
    limit = show(f.limit or a.total)
    where = f"under the limit of {limit}" if f.limit else "on the device"
    return {
        WhyNot.TOO_LARGE: f"the process may have {limit} in all",
        WhyNot.PIECES: f"{show(f.free)} are free inside of segments and {free} {where}, and "
        f"the largest piece has {show(f.largest_free)}: fragmentation",
        WhyNot.STREAMS: f"{show(f.free_of_streams)} are free for other streams only, or wait until "
        f"these are through; {free} are left {where}",
        WhyNot.POOLS: f"{show(f.free_of_pools)} are free in pools that it cannot use (CUDA graphs, "
        f"torch.cuda.MemPool, blocks of another size); {free} are left {where}",
        WhyNot.LIMIT: f"the program may reserve {limit} of {show(a.total)} "
        f"(torch.cuda.set_per_process_memory_fraction), of which {free} are left; the device has "
        f"{show(f.device_free)} left",
        WhyNot.OUTSIDE: f"{show(f.outside)} of the device are held outside of torch's allocator, "
        f"by other processes or libraries; {free} are left",
        WhyNot.FULL: f"everything is in use: {show(a.live)} live of {show(a.reserved)} reserved, "
        f"{free} left {where}, and the allocator needs {wanted}",
    }[f.why]


def in_a_line(account: DeviceAccount, kept: Sequence[str] = ()) -> str:
    """The failure of ``account`` for a log; ``kept`` are files that have the whole report."""
    f = account.failure
    assert f is not None
    text = f"Out of memory on {account.device}: {asked(f, format_bytes)} asked for {asker(f)}"
    text += f"; {why(account, f, format_bytes)}"
    largest = [f"{p.label} {format_bytes(n)}" for p, n in account.by_category().items()][:3]
    if largest:
        text += f". Live: {', '.join(largest)}"
    if f.activity:
        text += f". It was {f.activity}: the call is made again without"
    if f.count > 1:
        text += f". The {f.count:,}th time here"
    more = f"memprof report {' or '.join(kept)}" if kept else ""
    return f"{text}. {more or 'memprof.profile(on_oom=PATH) writes the whole report'}"

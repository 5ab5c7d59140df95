"""Perfetto and Chrome: counters of live bytes, slices of calls and operations, marks of the ledger.

The format is Chrome's "Trace Event Format" in its JSON object form, which Perfetto's trace
processor imports: ``C`` events are counters, ``X`` complete slices, ``i`` instants, ``M`` names.
``ts`` and ``dur`` are microseconds; three decimals keep the nanoseconds. Events are written as they
are made: memory does not grow with the log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from memprof.profiler.live.attribution import Attribution
from memprof.profiler.live.launches import launched
from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.model import Category, LaneKind, LedgerEntry, Profile, TrackerRecord
from memprof.profiler.model.kernel import Kernel
from memprof.profiler.support.writing import Output

from .walk import Walk, walks

_LEDGER, _THREADS, _LANES, _STREAMS = 1, 2, 10_000, 20_000
"""Track numbers: the ledger's, then threads of calls, then lanes without calls, then streams. None
is 0, which Perfetto takes for the thread that has the number of its process."""


_quoted = lru_cache(1024)(json.dumps)


def write_perfetto(
    profiles: Sequence[Profile], file: Output, kernels: Sequence[Kernel] = ()
) -> None:
    """Write a trace of one process, or of several ranks beside each other; see ``export_profile``.

    Several share the clock of 1970; those that do not know it begin together. What
    is not of calls (operations, snapshots, the ledger) is written whole.
    """
    traces = [
        _ProcessTrace(p, rank if len(profiles) > 1 else None) for rank, p in enumerate(profiles)
    ]
    base = 0
    if all(p.perf_origin_ns for p in profiles):
        base = min((t.base + t.profile.perf_origin_ns for t in traces), default=0)
        for t in traces:
            t.base = base - t.profile.perf_origin_ns
    about = {"memprof": profiles[0].memprof, "torch": profiles[0].torch}
    head = {"displayTimeUnit": "ns", "baseTimeNanoseconds": base, "otherData": about}
    file.write((json.dumps(head)[:-1] + ', "traceEvents": [\n').encode())
    separator = ""
    for trace in traces:
        for line in chain(trace.lines(), trace.kernels(kernels)):
            file.write(f"{separator}{line}".encode())
            separator = ",\n"
    file.write(b"\n]}\n")


class _ProcessTrace:
    """The events of one process; of several it has a ``rank``."""

    def __init__(self, profile: Profile, rank: int | None) -> None:
        self.profile = profile
        process = profile.process
        # Processes of several hosts may have the same number.
        self.pid = process.pid if process and rank is None else (rank or 0) + 1
        self.name = "memprof"
        if process is not None and process.world_size > 1:
            self.name = f"rank {process.rank} on {process.host}".removesuffix(" on ")
        self.base = min(self._first_times(), default=0)

    def _first_times(self) -> Iterator[int]:
        yield from self.profile.calls.start_ns
        for device in self.profile.dataflow.devices if self.profile.dataflow else ():
            yield from device.time_ns[:1]
        if (tracker := self.profile.tracker) is not None:
            yield tracker.metadata.start_ns
            yield from tracker.operation_allocations.start_ns[:1]
            yield from (s.time_ns for s in tracker.snapshots[:1])

    def lines(self) -> Iterator[str]:
        yield self._event("M", "process_name", args={"name": self.name})
        yield self._named(_LEDGER, "memprof ledger")
        for thread in sorted(set(self.profile.calls.thread)):
            yield self._named(_THREADS + thread, f"thread {thread}")
        found = walks(self.profile)
        yield from self._calls(found)
        for device, walk in found.items():
            yield from self._memory(device, walk)
        for entry in self.profile.ledger if self.profile.perf_origin_ns else ():
            yield self._mark(entry)
        if self.profile.dataflow is not None:
            for d in self.profile.dataflow.devices:
                yield from self._series(f"data flow {d.device}", d.time_ns, d.bytes)
        if self.profile.tracker is not None:
            yield from self._operations(self.profile.tracker)
            yield from self._snapshots(self.profile.tracker)

    def _calls(self, found: dict[str, Walk]) -> Iterator[str]:
        calls = self.profile.calls
        labels = {g.id: g.label for g in self.profile.graphs}
        modes = call_modes(self.profile)
        over_time = {d: w.timeline.bytes_over_time() for d, w in found.items()}
        for k in range(len(calls)):
            mode = "" if modes[k] is CallMode.RUN else f" ({modes[k].value})"
            args: dict[str, Any] = {"call": k + 1, "graph": calls.graph[k]}
            args |= {"program": calls.program[k], "mode": modes[k].value}
            for device, bytes_ in over_time.items():
                for edge in ("entry", "peak", "exit"):
                    args[f"{device} {edge} bytes"] = bytes_[edge][k]
            name, thread = labels[calls.graph[k]] + mode, _THREADS + calls.thread[k]
            start, end = calls.start_ns[k], calls.end_ns[k]
            yield self._slice(name, "compiled call", thread, start, end, args)

    def kernels(self, kernels: Sequence[Kernel]) -> Iterator[str]:
        tracks: dict[str, int] = {}
        for found in launched(self.profile, kernels):
            kernel, args = found.kernel, {}
            if found.graph is not None and found.call is not None:
                args = {"call": found.call + 1, "graph": found.graph.label}
                if found.launch is not None:
                    args |= found.launch.annotation(found.graph.label)
                    sizes = {b.name: b.nbytes for b in found.launch.buffers if b.nbytes is not None}
                    args |= {"bytes": sum(sizes.values()), "buffers": sizes}
            stream = f"cuda:{kernel.device} stream {kernel.stream}"
            if stream not in tracks:
                tracks[stream] = _STREAMS + len(tracks)
                yield self._named(tracks[stream], stream)
            start, end = (t - self.profile.perf_origin_ns for t in (kernel.start_ns, kernel.end_ns))
            yield self._slice(kernel.name, "kernel", tracks[stream], start, end, args)

    def _memory(self, device: str, walk: Walk) -> Iterator[str]:
        attribution = Attribution(walk.timeline.profile)
        # By change: calls of one kind share theirs, which the walk keeps.
        found: dict[int, Counter[str]] = {}
        values: Counter[str] = Counter()
        for moment in walk:
            change = moment.change
            if id(change) not in found:
                grown = found[id(change)] = Counter()
                for blocks, sign in ((change.freed, -1), (change.allocated, 1)):
                    for block in blocks:
                        label = attribution.site_of(block.item).category.label
                        grown[f"{device} {label}"] += sign * block.nbytes
                grown[f"{device} live"] = grown.total()
            yield from self._counters(moment.time_ns, found[id(change)], values)

    def _series(
        self, name: str, times: Sequence[int], columns: dict[Category, list[int]]
    ) -> Iterator[str]:
        values: Counter[str] = Counter()
        for i, time in enumerate(times):
            grown = Counter({f"{name} {c.label}": column[i] for c, column in columns.items()})
            grown[f"{name} live"] = grown.total()
            grown.subtract(values)
            yield from self._counters(time, grown, values)

    def _counters(self, time: int, grown: Counter[str], values: Counter[str]) -> Iterator[str]:
        """Lines of the counters that have grown, by so many bytes; ``values`` is brought up to
        date."""
        stamp = self._us(time)
        for counter, nbytes in grown.items():
            if nbytes:
                values[counter] += nbytes
                yield f"{self._counter(counter, values[counter])}{stamp}}}"

    def _mark(self, entry: LedgerEntry) -> str:
        args: dict[str, Any] = {"reason": entry.reason, "count": entry.count}
        if entry.graph is not None:
            args["graph"] = entry.graph
        if entry.tree is not None:
            args |= {"function": entry.tree.function, "marginal bytes": entry.tree.marginal}
        time = entry.time_ns - self.profile.perf_origin_ns
        return self._event("i", entry.kind.value.replace("_", " "), time, _LEDGER, args, s="t")

    def _operations(self, tracker: TrackerRecord) -> Iterator[str]:
        tracks: list[int] = []
        for i, lane in enumerate(tracker.metadata.lanes):
            shared = lane.kind is LaneKind.THREAD and lane.call_thread is not None
            tracks.append(_THREADS + (lane.call_thread or 0) if shared else _LANES + i)
            kind = "task" if lane.kind is LaneKind.TASK else "thread"
            yield self._named(tracks[-1], f"{kind} {lane.name}")
        rows = tracker.operation_allocations
        for i in range(len(rows)):
            args: dict[str, Any] = {"path": tracker.path(rows.summary[i])}
            if rows.tensor_bytes_before[i] >= 0 and rows.tensor_bytes_after[i] >= 0:
                before, after = rows.tensor_bytes_before[i], rows.tensor_bytes_after[i]
                args |= {"tensor bytes before": before, "tensor bytes change": after - before}
            for device, memory in rows.memory.items():
                if memory.before[i] >= 0 and memory.after[i] >= 0:
                    args[f"{device} bytes change"] = memory.after[i] - memory.before[i]
                if memory.peak[i] >= 0:
                    args[f"{device} peak bytes"] = memory.peak[i]
            if rows.failed[i]:
                args["failed"] = True
            name, track = tracker.operation_summary[rows.summary[i]].name, tracks[rows.lane[i]]
            start, end = rows.start_ns[i], rows.end_ns[i]
            if end < 0:
                name, end = f"{name} (running)", max(tracker.metadata.end_ns, start)
            yield self._slice(name, "operation", track, start, end, args)

    def _snapshots(self, tracker: TrackerRecord) -> Iterator[str]:
        for s in tracker.snapshots:
            stamp = self._us(s.time_ns)
            for device, memory in s.devices.items():
                for name, value in (
                    ("tensors", memory.tensor_bytes),
                    ("allocated", memory.allocated_bytes),
                    ("reserved", memory.reserved_bytes),
                ):
                    if value is not None:
                        yield f"{self._counter(f'tracker {device} {name}', value)}{stamp}}}"
            if s.name:
                yield self._event("i", s.name, s.time_ns, _LEDGER, {"kind": s.kind.value}, s="t")

    # How it is written

    def _us(self, ns: int) -> str:
        ns -= self.base
        sign, ns = ("-", -ns) if ns < 0 else ("", ns)
        return f"{sign}{ns // 1000}.{ns % 1000:03d}"

    def _counter(self, name: str, value: int) -> str:
        """A counter's line up to its time, which ends it."""
        start = f'{{"ph":"C","pid":{self.pid},"name":{_quoted(name)}'
        return f'{start},"args":{{"bytes":{value}}},"ts":'

    def _named(self, track: int, name: str) -> str:
        return self._event("M", "thread_name", tid=track, args={"name": name})

    def _slice(
        self, name: str, cat: str, tid: int, start: int, end: int, args: dict[str, Any]
    ) -> str:
        return self._event("X", name, start, tid, args, cat=cat, dur=(end - start) / 1000)

    def _event(
        self,
        phase: str,
        name: str,
        time: int | None = None,
        tid: int = 0,
        args: dict[str, Any] | None = None,
        **more: str | float,
    ) -> str:
        stamp = "" if time is None else f',"ts":{self._us(time)}'
        rest = "".join(f',"{k}":{json.dumps(v)}' for k, v in more.items())
        return (
            f'{{"ph":"{phase}","pid":{self.pid},"tid":{tid},"name":{json.dumps(name)}{stamp}{rest},'
            f'"args":{json.dumps(args or {})}}}'
        )

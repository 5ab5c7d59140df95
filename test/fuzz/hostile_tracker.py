"""Files of trackers that nobody should hand to a reader, by name. Each once stood for a hang,
memory without end or a record lost, or could.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from framing import header, packed

from memprof.profiler.file.frames import Kind
from memprof.profiler.file.tracker_fold import Entry, OperationRow
from memprof.profiler.model import (
    DeviceSummary,
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationSummary,
    OperatorCall,
    OperatorRecord,
    OperatorStatistics,
    SnapshotKind,
    Span,
    TensorInfo,
    TrackedDevice,
    TrackerMetadata,
)


def entries() -> list[Entry]:
    """Of an ordinary file, with everything that one can have."""
    cpu = TrackedDevice(100, 2, 90, 200, 300, 1 << 30, 200)
    rows = [
        OperationRow(i, i % 2, 0, i - 1 if i % 2 else -1, 10 + i, 40 - i, 1, 2, 3, 4,
                     {"cpu": (1, 2, 3, True)}) for i in range(6)
    ]  # fmt: skip
    return [
        Entry(
            TrackerMetadata(
                perf_origin_ns=5,
                end_ns=50,
                host="h",
                pid=7,
                command=("train.py",),
                settings={"interval": "5.0"},
                lanes=[Lane(LaneKind.THREAD, "main", 0), Lane(LaneKind.TASK, "task 1", 0)],
                pauses=[Span(3, 4)],
            )
        ),
        Entry(snapshot=MemorySnapshot(10, SnapshotKind.START, devices={"cpu": cpu})),
        Entry(
            snapshot=MemorySnapshot(
                20,
                name="epoch",
                kind=SnapshotKind.CHECKPOINT,
                devices={"cpu": cpu, "cuda:0": cpu},
                largest=(TensorInfo((2, 3), "torch.float32", "cpu", 24),),
                operations=("step",),
                merged=2,
            ),
            operations=rows[:3],
        ),
        Entry(
            operations=rows,
            summaries={
                0: OperationSummary("step", count=3, devices={"cpu": DeviceSummary(1, 2, 3, 4)}),
                1: OperationSummary(
                    "forward",
                    0,
                    count=3,
                    left_bytes=24,
                    left=(TensorInfo((2, 3), "torch.float32", "cpu", 24),),
                ),
            },
        ),
        Entry(
            pytorch_operations=OperatorRecord(
                [Span(1, 2)],
                [OperatorStatistics("aten::mm", 3)],
                sequence=[OperatorCall("aten::mm", 1, shapes=((2, 3), ()))],
            )
        ),
    ]


def grown(*extra: bytes, settings: dict[str, str] | None = None) -> bytes:
    """The file of a tracker that was killed.

    Args:
        extra: entries after the first one, as JSON.
        settings: that it states.
    """
    first, *rest = map(msgspec.to_builtins, entries())
    first["metadata"]["settings"].update(settings or {})
    payloads = [msgspec.json.encode(first), *extra, *map(msgspec.json.encode, rest)]
    return packed([header(), *((Kind.TRACKER, payload) for payload in payloads)])


def _operation(number: int, parent: int, **more: int) -> bytes:
    row = {"number": number, "summary": 0, "lane": 0, "parent": parent, "start_ns": 1, "end_ns": 2}
    return msgspec.json.encode({"operations": [{**row, **more}]})


BAD_ENTRIES: dict[str, Callable[[], bytes]] = {
    "operations in a circle": lambda: (
        b'{"operations":[%b,%b]}'
        % (
            _operation(7, 8)[len(b'{"operations":[') : -2],
            _operation(8, 7)[len(b'{"operations":[') : -2],
        )
    ),
    "its own parent": lambda: _operation(7, 7),
    "a number beyond all": lambda: _operation(2**64 - 1, -1),
    "a negative number": lambda: _operation(-7, -9),
    "a place that no tree has": lambda: _operation(7, -1, summary=10**9),
    "a lane that no record has": lambda: _operation(7, -1, lane=10**9),
    "before the beginning": lambda: _operation(7, -1, start_ns=-5),
    "an instant beyond all": lambda: b'{"snapshot":{"time_ns":' + b"9" * 400 + b"}}",
    "a summary beyond all": lambda: b'{"summaries":{"123456789":{"name":"x"}}}',
    "a summary before the first": lambda: b'{"summaries":{"-1":{"name":"x"}}}',
    "nested": lambda: b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no UTF-8": lambda: b'{"snapshot":{"time_ns":3,"name":"\xff\xfe"}}',
    "no JSON": lambda: b"\x00\x01\x02 hello",
    "too many lanes": lambda: (
        b'{"metadata":{"lanes":['
        + b",".join([b'{"kind":"thread","name":"x","thread":0}'] * 600)
        + b"]}}"
    ),
}
"""What no tracker writes: each costs itself and no other."""

TRACKER_FILES: dict[str, Callable[[], bytes]] = {
    **{f"entry: {name}": lambda entry=entry: grown(entry()) for name, entry in BAD_ENTRIES.items()},
    "no room for snapshots": lambda: grown(settings={"max_snapshots": "0"}),
    "negative room": lambda: grown(settings={"max_snapshots": "-1", "max_operations": "-9"}),
    "endless room": lambda: grown(
        settings={"max_snapshots": str(1 << 62), "max_operations": "9" * 5_000}
    ),
    "room that is no number": lambda: grown(settings={"max_snapshots": "many"}),
    "a long name of a snapshot": lambda: grown(
        b'{"snapshot":{"time_ns":3,"name":"' + b"x" * (9 << 20) + b'"}}'
    ),
    "very many snapshots": lambda: grown(
        *(b'{"snapshot":{"time_ns":%d}}' % i for i in range(30_000)),
        settings={"max_snapshots": "10"},
    ),
    "very many operations": lambda: grown(
        *(_operation(i, i - 1) for i in range(30_000)), settings={"max_operations": "0"}
    ),
    "empty entries": lambda: grown(*[b"{}"] * 100_000),
}

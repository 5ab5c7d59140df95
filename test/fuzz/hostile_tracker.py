"""Journals and settings that nobody should hand to a tracker, by name. Each once stood for a hang,
an error raised into the training, memory without end or a record lost, or could.

Tests show every one of them; ``fuzz.tracker`` begins with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from memprof.profiler.model import (
    DeviceMemory,
    DeviceSummary,
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationSummary,
    OperatorRecord,
    OperatorStatistics,
    SnapshotKind,
    Span,
    TensorInfo,
    TrackerMetadata,
)
from memprof.profiler.tracker.journal import Entry, Header
from memprof.profiler.tracker.rows import OperationRow
from memprof.profiler.tracker.writer import this_process

DEAD = Header(
    memprof="0.1.0",
    writer=dataclasses.replace(this_process(), pid=2_000_000_000, started=1),
    locked=True,
)
"""Of a process that is certainly gone: no system has so many."""


def entries() -> list[Entry]:
    """Lines of an ordinary journal, with everything that one can have."""
    cpu = DeviceMemory(100, 2, 90, 200, 300, 1 << 30, (), 200)
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
                1: OperationSummary("forward", 0, count=3),
            },
        ),
        Entry(pytorch_operations=OperatorRecord([Span(1, 2)], [OperatorStatistics("aten::mm", 3)])),
    ]


def journal(*extra: bytes, header: bytes | None = None, last: bytes = b"\n") -> bytes:
    """An ordinary journal with more lines after its first entry.

    Args:
        extra: the lines, without line breaks.
        header: in the place of its first line.
        last: how it ends.
    """
    first, *rest = map(msgspec.json.encode, entries())
    head = msgspec.json.encode(DEAD) if header is None else header
    return b"\n".join([head, first, *extra, *rest]) + last


def header_with(**fields: object) -> bytes:
    """The first line with other values; None takes one out."""
    values = {**msgspec.json.decode(msgspec.json.encode(DEAD)), **fields}
    return msgspec.json.encode({k: v for k, v in values.items() if v is not None})


def _operation(number: int, parent: int, **more: int) -> bytes:
    row = {"number": number, "summary": 0, "lane": 0, "parent": parent, "start_ns": 1, "end_ns": 2}
    return msgspec.json.encode({"operations": [{**row, **more}]})


BAD_LINES: dict[str, Callable[[], bytes]] = {
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
    "too long": lambda: b'{"snapshot":{"time_ns":3,"name":"' + b"x" * (9 << 20) + b'"}}',
}
"""Lines that no tracker writes: each costs itself and no other."""

JOURNALS: dict[str, Callable[[], bytes]] = {
    **{name: lambda line=line: journal(line()) for name, line in BAD_LINES.items()},
    "no room for snapshots": lambda: journal(header=header_with(max_snapshots=0)),
    "negative room": lambda: journal(header=header_with(max_snapshots=-1, max_operations=-9)),
    "endless room": lambda: journal(
        header=header_with(max_snapshots=1 << 62, max_operations=1 << 62)
    ),
    "room that is no number": lambda: journal(header=header_with(max_snapshots="many")),
    "of no process": lambda: journal(header=header_with(writer={"pid": -1})),
    "of a process beyond all": lambda: journal(
        header=header_with(writer={**msgspec.to_builtins(DEAD.writer), "pid": 10**25})
    ),
    "another version": lambda: journal(header=header_with(schema_version=9)),
    "a version that is an escape": lambda: journal(header=header_with(schema_version="\x1b[2J")),
    "no version": lambda: journal(header=header_with(schema_version=None)),
    "a nested version": lambda: (
        b'{"format":"memprof-tracker-journal","schema_version":'
        + b"[" * 5_000
        + b"]" * 5_000
        + b"}\n"
    ),
    "a header without end": lambda: (
        b'{"format":"memprof-tracker-journal","memprof":"' + b"x" * 200_000
    ),
    "nothing but a header": lambda: msgspec.json.encode(DEAD) + b"\n",
    "cut in the header": lambda: msgspec.json.encode(DEAD)[:40],
    "cut in the last line": lambda: journal(last=b"")[:-20],
    "a million empty lines": lambda: journal() + b"\n" * 1_000_000,
    "very many snapshots": lambda: journal(
        *(b'{"snapshot":{"time_ns":%d}}' % i for i in range(30_000)),
        header=header_with(max_snapshots=10),
    ),
    "very many operations": lambda: journal(
        *(_operation(i, i - 1) for i in range(30_000)), header=header_with(max_operations=0)
    ),
    "noise": lambda: bytes(range(256)) * 100,
    "empty": lambda: b"",
}

TOML: dict[str, str | bytes] = {
    "deep arrays": "x = " + "[" * 100_000,
    "arrays as deep as they are read": "x = " + "[" * 190 + "]" * 190,
    "deep inline tables": "x = " + "{a=" * 50_000,
    "a long dotted key": "[memprof]\n" + "a." * 20_000 + "b = 1",
    "many long dotted keys": "".join(f"{'a.' * 150}b{i} = 1\n" for i in range(500)),
    "a null character": '[memprof]\noutput_dir = "a\\u0000b"',
    "an interval that nobody waits": "[memprof]\ninterval = 1e300",
    "an interval of 10^400": f"[memprof]\ninterval = 1{'0' * 400}",
    "a negative interval": "[memprof]\ninterval = -1",
    "no number": "[memprof]\ninterval = nan",
    "more digits than Python reads": f"[memprof]\nlargest = {'9' * 5_000}",
    "a count beyond a deque": "[memprof]\nmax_operations = 9223372036854775808",
    "a share beyond all": "[memprof]\noperation_share = 1e9",
    "a long name": f"[memprof]\n{'x' * 100_000} = 1",
    "a table for a value": "[memprof.interval]\na = 1",
    "a date for a value": "[memprof]\ninterval = 1979-05-27T07:32:00Z",
    "an impossible date": "[memprof]\ninterval = 2023-02-31",
    "a value for the table": "memprof = 3",
    "an array of tables": "[[memprof]]\ninterval = 1",
    "too long": "#" * 300_000,
    "no UTF-8": b"[memprof]\nx = '\xff'\n",
    "a null byte": b"[memprof]\n\x00 = 1\n",
    "an escape in a name": '[memprof]\n"\\u001b[2J" = 1',
    "lone line breaks": b"[memprof]\rinterval = 1\r",
    "empty": "",
}

VARIABLES: dict[str, str] = {
    "MEMPROF_INTERVAL": "1e300",
    "MEMPROF_LARGEST": "9" * 5_000,
    "MEMPROF_MAX_SNAPSHOTS": "-1",
    "MEMPROF_MAX_OPERATIONS": "9223372036854775808",
    "MEMPROF_OPERATION_SHARE": "nan",
    "MEMPROF_ENABLED": "\x1b[2J",
    "MEMPROF_OUTPUT_DIR": "/nowhere/\udcff",
    "MEMPROF_CONFIG": "/dev/zero",
}
"""Each wrong by itself."""

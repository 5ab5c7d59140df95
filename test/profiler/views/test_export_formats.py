"""The exports are what other tools read: torch's memory_viz, Perfetto, pandas."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tracemalloc
from pathlib import Path

import pytest
from outputs import invoke
from profile_builder import MIB, ProgramBuilder, calls as logged, training

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import (
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    Lane,
    LaneKind,
    LedgerEntry,
    LedgerKind,
    MemorySnapshot,
    Process,
    Profile,
    Role,
    SourceFrame,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.model.tracker import (
    MemoryColumns,
    OperationColumns,
    OperationSummary,
    TrackedDevice,
)
from memprof.profiler.views.export import FORMATS, export_profile
from memprof.profiler.views.export.perfetto import write_perfetto
from profiler.sources.trace.perfetto_wasm import query

SECOND = 1_000_000_000


def everything() -> Profile:
    """A training run that also has a tracker's record and a data-flow profile."""
    profile = training()
    profile.process = Process(1, 1, 4, "somewhere", 42)
    profile.perf_origin_ns = 1_700_000_000 * SECOND
    profile.ledger = [
        LedgerEntry(profile.perf_origin_ns + 5_000, LedgerKind.COMPILED, 0, "first compilation")
    ]
    profile.dataflow = DataFlowColumns(
        [
            DataFlowDevice(
                "cpu",
                [0, 2_000_000],
                {Category.ACTIVATION: [5, 7], Category.UNKNOWN: [1, 1]},
                1,
                [
                    DataFlowStorage(
                        7, Category.ACTIVATION, "aten::mm", "l1", SourceFrame("/a/b.py", 3, "f")
                    ),
                    DataFlowStorage(1, Category.UNKNOWN),
                ],
            )
        ]
    )
    profile.tracker = TrackerRecord(
        TrackerMetadata(
            start_ns=0,
            end_ns=9_000_000,
            lanes=[
                Lane(LaneKind.THREAD, "MainThread", 0, call_thread=0),
                Lane(LaneKind.TASK, "Task-1", 0),
            ],
        ),
        [MemorySnapshot(1_000_000, devices={"cpu": TrackedDevice(10, 1, None, 30)})],
        OperationColumns(
            summary=[0, 1, 2],
            lane=[0, 0, 1],
            parent=[-1, 0, -1],
            start_ns=[0, 900_000, 200],
            end_ns=[8_900_000, 1_600_000, -1],
            tensor_bytes_before=[10, -1, -1],
            tensor_bytes_after=[30, -1, -1],
            tensors_before=[1, -1, -1],
            tensors_after=[2, -1, -1],
            memory={"cpu": MemoryColumns([5, 5, -1], [9, 6, -1], [11, 7, -1], [True] * 3)},
            failed=[False, True, False],
        ),
        [
            OperationSummary("step"),
            OperationSummary("forward", 0),
            OperationSummary("request"),
        ],
    )
    return profile


# Perfetto


def test_perfetto_reads_counters_slices_and_marks(tmp_path: Path) -> None:
    file = io.BytesIO()
    write_perfetto([everything()], file)
    rows = query(
        file.getvalue(),
        "select 'counter', t.name, count(*), max(c.value) from counter c join counter_track t "
        "on c.track_id = t.id group by t.name union all "
        "select 'slice', s.name, count(*), sum(s.dur) from slice s group by s.name union all "
        "select 'depth', s.name, max(s.depth), 0 from slice s where s.category is "
        "'compiled call' group by s.name",
        tmp_path,
    )
    found = {(kind, name): (n, int(value)) for kind, name, n, value in rows}
    peak = 26 * MIB
    assert found["counter", "cpu live bytes"][1] == peak
    assert found["counter", "cpu parameter bytes"][1] == 6 * MIB
    assert found["counter", "cpu activation bytes"] == (6, 8 * MIB)
    assert found["counter", "data flow cpu live bytes"] == (2, 8)
    assert found["counter", "tracker cpu tensors bytes"] == (1, 10)
    assert found["counter", "tracker cpu reserved bytes"] == (1, 30)
    assert ("counter", "tracker cpu allocated bytes") not in found
    assert found["slice", "0/0 forward"] == (3, 1_500_000)
    assert found["slice", "step"] == (1, 8_900_000)
    assert found["slice", "forward"] == (1, 700_000)
    assert found["slice", "request (running)"] == (1, 8_999_800)
    assert found["slice", "compiled"] == (1, 0)
    # The operations around them are on the same track: calls stand inside them.
    assert found["depth", "0/0 forward"][0] == 1
    assert found["depth", "0/0 backward"][0] == 2


def test_perfetto_shows_the_ledger_of_each_rank_on_a_track_of_its_own(tmp_path: Path) -> None:
    file = io.BytesIO()
    write_perfetto([everything(), everything()], file)
    rows = query(
        file.getvalue(),
        "select p.pid, t.name, group_concat(distinct s.name) from slice s "
        "join thread_track k on s.track_id = k.id join thread t using (utid) "
        "join process p using (upid) group by p.pid, t.name",
        tmp_path,
    )
    # THEN what threads ran is not among the marks, nor the marks among what they ran
    found = {(int(pid), track): set(names.split(",")) for pid, track, names in rows}
    for pid in (1, 2):
        assert "compiled" in found[pid, "memprof ledger"]
        assert found[pid, "thread MainThread"] == {
            *("step", "forward", "0/0 forward", "0/0 backward", "1/0 inference")
        }


def test_ranks_of_a_merged_file_stand_beside_each_other(tmp_path: Path) -> None:
    # GIVEN two ranks whose clocks began a second apart, on hosts that gave the same pid
    ranks = [everything(), everything()]
    for rank, profile in enumerate(ranks):
        profile.process = Process(rank, 0, 2, f"host{rank}", 42)
        profile.perf_origin_ns += rank * SECOND
        write_profile(profile, tmp_path / f"{rank}.memprof")
    merged = str(tmp_path / "merged.memprof")
    files = [str(tmp_path / f"{rank}.memprof") for rank in (0, 1)]
    invoke("export", *files, "-f", "memprof", "-o", merged)
    # WHEN it is exported as one trace
    invoke("export", merged, "-f", "perfetto", "-o", tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_bytes())
    # THEN each is a process, and the second runs a second later
    names = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert names == {1: "rank 0 on host0", 2: "rank 1 on host1"}
    starts = {
        pid: min(e["ts"] for e in trace["traceEvents"] if e["pid"] == pid and e["ph"] == "X")
        for pid in names
    }
    assert starts == {1: 0, 2: SECOND / 1000}
    assert trace["baseTimeNanoseconds"] == ranks[0].perf_origin_ns
    # AND the other formats are of one rank, which has to be named
    viz = ("export", merged, "-f", "memory-viz", "-o", tmp_path / "x")
    assert "rank" in invoke(*viz, status=2).output
    invoke(*viz, "--rank", "1")
    with pytest.raises(ValueError, match="memory-viz takes one profile, not 2"):
        export_profile(ranks, "memory-viz", tmp_path / "y")


# Long logs


def repeated(calls: int, allocations: int = 50) -> Profile:
    """One graph called again and again; each call allocates and frees that often."""
    builder = ProgramBuilder().input("p", MIB, Category.PARAMETER, 1, [0])
    for i in range(allocations):
        builder.alloc(f"buf{i}", 1024 * (i + 1), i).free(f"buf{i}", i)
    graph = GraphRecord(
        0,
        GraphKind.INFERENCE,
        "0/0",
        description=GraphDescription(
            inputs=(GraphValue(0, "p", Role.PARAMETER, Category.PARAMETER, "p"),)
        ),
        programs=[builder.build()],
    )
    return Profile(graphs=[graph], calls=logged(*[(0, 0)] * calls))


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    def peak(profile: Profile) -> int:
        tracemalloc.start()
        export_profile(profile, "perfetto", tmp_path / "out")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    short, long = repeated(50), repeated(1000)  # 5,000 and 100,000 events
    peak(short)  # imports
    few, many = peak(short), peak(long)
    assert many < few + 4 * MIB, (few, many)


@pytest.mark.parametrize("format", FORMATS)
def test_names_that_are_not_utf8_are_escaped(format: str, tmp_path: Path) -> None:
    # GIVEN a path as Python has it, in a profile that no file has seen
    profile = everything()
    for graph in profile.graphs:
        for name, known in graph.nodes.items():
            frame = SourceFrame("caf\udce9.py", 3, "f", "y = caf\udce9(x)")
            graph.nodes[name] = dataclasses.replace(known, stack=(frame,))
    export_profile(profile, format, tmp_path / "out")


# The command


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_profile(everything(), tmp_path / "p.memprof")
    return str(tmp_path / "p.memprof")


@pytest.mark.parametrize("format", FORMATS)
def test_the_command_writes_every_format(path: str, tmp_path: Path, format: str) -> None:
    result = invoke("export", path, "--format", format, "-o", tmp_path / "out")
    assert result.output == f"{tmp_path / 'out'}: {FORMATS[format]}\n"
    # AND again over what is there, compressed this time
    invoke("export", path, "-f", format, "-o", tmp_path / "out.gz")
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == (tmp_path / "out").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-f", "pdf"], "'pdf' is not one of 'perfetto'"),
        ([], "Missing option '--format'"),
    ],
)
def test_bad_requests_are_refused(path: str, tmp_path: Path, args: list[str], says: str) -> None:
    result = invoke("export", path, "-o", tmp_path / "out", *args, status=2)
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_place_that_cannot_be_written(path: str, tmp_path: Path, format: str) -> None:
    (tmp_path / "file").write_text("here")
    result = invoke("export", path, "-f", format, "-o", tmp_path / "file" / "out", status=2)
    assert "Nothing was changed there" in result.output
    assert (tmp_path / "file").read_text() == "here"

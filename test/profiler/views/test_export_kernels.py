"""Kernels of a trace of torch.profiler, in a trace for Perfetto, with the bytes that they make."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from outputs import invoke
from profile_builder import calls as logged, node

import memprof
from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import BufferProvenance, GraphKind, GraphRecord, Profile, Statement
from memprof.profiler.support.errors import ProfileInvalidError

ORIGIN = 1_700_000_000_000_000_000
BASE = ORIGIN - 5_000_000
"""A trace's times count from somewhere else."""


def two_layers() -> Profile:
    """Two layers that are alike, so that they share a kernel; the second one's is written to memory
    that a library's matrix product filled before."""

    def line(number: int, text: str, *reads: str, makes: tuple[str, ...] = ()) -> Statement:
        return Statement(number, makes, reads, text, "Runner.call")

    statements = (
        line(1, "buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)", makes=("buf0",)),
        line(2, "triton_poi_fused_gelu_0.run(x, buf0, 16, stream=stream0)", "x", "buf0"),
        line(3, "buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)", makes=("buf1",)),
        line(4, "extern_kernels.mm(buf0, w, out=buf1)", "buf0", "w", "buf1"),
        line(5, "buf2 = buf1; del buf1  # reuse", "buf1", makes=("buf2",)),
        line(6, "triton_poi_fused_gelu_0.run(buf0, buf2, 16, stream=stream0)", "buf0", "buf2"),
    )
    nodes = [node("gelu", "aten.gelu", "first", 3), node("mm", "aten.mm", "second", 4)]
    nodes += [node("gelu_1", "aten.gelu", "second", 5)]
    buffers = [
        BufferProvenance(f"buf{i}", "ComputedBuffer", (n.name,), n.name, nbytes=64 * (i + 1))
        for i, n in enumerate(nodes)
    ]
    graph = GraphRecord(0, GraphKind.INFERENCE, "0/0", statements=statements)
    graph.nodes, graph.buffers = {n.name: n for n in nodes}, {b.name: b for b in buffers}
    return Profile(graphs=[graph], calls=logged((0, -1), (0, -1), (0, -1)), perf_origin_ns=ORIGIN)


def trace(*kernels: tuple[str, float, dict[str, Any]]) -> dict[str, Any]:
    """Kernels of stream 7 that run for 2 µs a millisecond after their launch, at so many µs of the
    profile's clock, by one graph where that is the same."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}]
    for i, (name, at, more) in enumerate(kernels):
        at += (ORIGIN - BASE) / 1000
        launch = {"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at, "dur": 1}
        events.append({"ph": "X", **launch, "args": {"correlation": 10 + int(at)}})
        args = {"device": 0, "stream": 7, "correlation": 10 + int(at), **more}
        run = {"cat": "kernel", "name": name, "ts": at + 1000 + 5 * i, "dur": 2.0}
        events.append({"ph": "X", "pid": 0, "tid": 7, **run, "args": args})
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": events}


def test_kernels_stand_beside_the_bytes_that_they_make(tmp_path: Path) -> None:
    # GIVEN a replay and the copy of its input, a call with a kernel more than its code launches,
    # one that is cut off, and a kernel of no call
    gelu, gemm = "triton_poi_fused_gelu_0", "ampere_sgemm_32x32_nn"
    found = trace(
        *[("copy", 5, {}), (gelu, 10, {}), (gemm, 10, {}), (gelu, 10, {})],
        *[(gelu, 1010, {}), (gemm, 1010, {}), ("splitK", 1010, {}), (gelu, 1010, {})],
        *[(gelu, 2010, {}), (gemm, 2010, {"graph": "0/0 inference", "nodes": "mm"})],
        ("eager", 2700, {}),
    )
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(json.dumps(found).encode()))
    write_profile(two_layers(), tmp_path / "run.memprof")
    # WHEN both are exported
    given = (tmp_path / "run.memprof", "--kernels", tmp_path / "trace.json.gz")
    done = invoke("export", *given, "-f", "perfetto", "-o", tmp_path / "out.json")
    assert done.output.endswith("6 of 11 kernels have their line of compiled code\n")
    written = json.loads((tmp_path / "out.json").read_text())
    slices = [e for e in written["traceEvents"] if e.get("cat") == "kernel"]
    slices.sort(key=lambda e: e["ts"])
    # THEN each has what it makes, where that is known: a kernel that layers share by its turn
    shown = [(e["args"].get("call"), e["args"].get("name"), e["args"].get("bytes")) for e in slices]
    assert shown == [
        *[(1, None, None), (1, "first", 64), (1, "second", 128), (1, "second", 192)],
        *[(2, "first", 64), (2, None, None), (2, None, None), (2, "second", 192)],
        *[(3, None, None), (3, "second", 128)],
        (None, None, None),
    ]
    assert slices[3]["args"]["nodes"] == "gelu_1"
    assert slices[3]["args"]["buffers"] == {"buf2": 192}
    assert slices[1]["args"]["line"].endswith("model.py:3")
    # AND on the clock of the calls
    assert [(e["ts"], e["dur"]) for e in slices[:2]] == [(1005.0, 2.0), (1015.0, 2.0)]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    write_profile(two_layers(), tmp_path / "run.memprof")
    views = memprof.load(tmp_path / "run.memprof")
    for content in (b"[1]", b"\x1f\x8bno", b'{"traceEvents": [{"cat": "kernel", "ts": "x"}]}'):
        (tmp_path / "trace.json").write_bytes(content)
        with pytest.raises(ProfileInvalidError, match="export_chrome_trace"):
            views.export(tmp_path / "out", "perfetto", kernels=tmp_path / "trace.json")
    (tmp_path / "trace.json").write_text(json.dumps(trace(("eager", 1, {}))))
    with pytest.raises(ValueError, match="kernels go with perfetto"):
        views.export(tmp_path / "out", "json", kernels=tmp_path / "trace.json")

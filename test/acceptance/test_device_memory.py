"""memprof takes no device memory of its own, at real sizes; and the search of `make bench-memory`.

The runs are those of benchmarks/device_memory.py: fresh processes on a simulated device that
computes nothing. The quick ones have two layers of the real width.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from device_memory import (
    AMPLE_MIB,
    BACKENDS,
    CONTEXT_MIB,
    Devices,
    Probe,
    Result,
    Runner,
    cells,
    measure,
)

ROOT = Path(__file__).parents[2]
OK, FULL = Probe("ok"), Probe("out of memory")


# The search


@pytest.mark.parametrize("true", [700, 5700, 5753, 5800, 5934, 6100, 9000, AMPLE_MIB])
@pytest.mark.parametrize(
    ("low", "high"), [(5753, 5934), (5800, 5800), (5000, 9696), (100_000, 90_000)]
)
def test_the_smallest_device_is_found_from_any_guess(true: int, low: int, high: int) -> None:
    search = Devices(lambda mib: OK if mib >= true else FULL, 0.01, {AMPLE_MIB: OK})
    found = search.smallest(lambda p: p.ran, low, high)
    # THEN it was tried itself, and so was one that is too small and hardly smaller
    assert found is not None
    assert search.tried[found] == OK
    assert true <= found <= 1.01 * true + 1
    if found > true:
        assert any(not p.ran and s >= found / 1.01 - 1 for s, p in search.tried.items())


def test_a_good_guess_costs_few_runs() -> None:
    search = Devices(lambda mib: OK if mib >= 5900 else FULL, 0.01, {AMPLE_MIB: OK})
    assert search.smallest(lambda p: p.ran, 5753, 5934) == 5934
    assert len(search.tried) - 1 <= 3


def test_no_device_may_be_large_enough() -> None:
    search = Devices(lambda mib: FULL, 0.01, {AMPLE_MIB: FULL})
    assert search.smallest(lambda p: p.ran, 5753, 5934) is None


class _Scripted(Runner):
    """Reserves 900 MiB; needs 700 to run at all and 800 for its graphs."""

    def __init__(self) -> None:
        super().__init__(None, 1.0)
        self.runs: list[int] = []

    def run(self, workload: str, backend: str, mib: int = AMPLE_MIB) -> dict[str, object]:
        self.runs.append(mib)
        room = mib - CONTEXT_MIB
        steps = [{"launches": 2 if room >= 800 else 0}] * 3
        return {
            "ended": "ok" if room >= 700 else "out of memory",
            "message": "CUDA out of memory",
            "reserved_peak": 900 << 20,
            "allocated_peak": 750 << 20,
            "steady_reserved": 900 << 20,
            "steps": steps,
        }


def test_running_and_running_with_graphs_are_told_apart() -> None:
    runner = _Scripted()
    result = measure(runner, "any", "memprof", devices=True, tolerance=0.01)
    assert result.with_graphs_mib is not None
    assert result.runs_on_mib is not None
    assert 1312 <= result.with_graphs_mib <= 1.01 * 1312 + 1
    assert 1212 <= result.runs_on_mib <= 1.01 * 1212 + 1
    assert "ok, fewer graphs" in result.tried.values()
    assert len(runner.runs) == len(set(runner.runs)), "a device was tried twice"
    # AND a line has the ratios to what the others need
    others = [
        Result("any", "inductor", {**result.outcome, "reserved_peak": 450 << 20}, 1000),
        Result("any", "reduce-overhead", {**result.outcome, "reserved_peak": 600 << 20}, 1100),
    ]
    line = cells(result, others)
    assert line[3:5] == ["900", "1.500"]
    assert line[7] == f"{result.runs_on_mib / 1000:.3f}"


def test_what_does_not_run_on_an_ample_device_is_not_searched_for() -> None:
    class Broken(_Scripted):
        def run(self, workload: str, backend: str, mib: int = AMPLE_MIB) -> dict[str, object]:
            self.runs.append(mib)
            return {"ended": "RuntimeError", "message": "operation not permitted"}

    runner = Broken()
    result = measure(runner, "any", "reduce-overhead", devices=True, tolerance=0.01)
    assert runner.runs == [AMPLE_MIB]
    assert cells(result, [])[2] == "RuntimeError: operation not permitted"


# What the Makefile says of benchmarks


def _benchmarks() -> Iterator[tuple[str, str]]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target, script, rest in re.findall(
        r"^(bench[a-z-]*):.*\n\t.*?(benchmarks/\w+\.py)(.*)$", text, re.MULTILINE
    ):
        assert "$(ARGS)" in rest, target
        yield target, script


def test_every_benchmark_has_a_quick_mode() -> None:
    found = dict(_benchmarks())
    assert len(found) == 10
    for target, script in found.items():
        source = (ROOT / script).read_text(encoding="utf-8")
        assert '"--quick"' in source, target


# Real sizes


def _holds(found: dict[str, Result]) -> None:
    for result in found.values():
        assert result.outcome["ended"] == "ok", result.outcome
    mine, trees = (found[b].outcome["reserved_peak"] for b in ("memprof", "reduce-overhead"))
    assert mine <= 1.01 * trees, f"memprof reserves {mine / trees:.3f} times what torch's trees do"
    assert found["memprof"].outcome["launches"] == found["reduce-overhead"].outcome["launches"] > 0


@pytest.mark.simgpu
def test_memprof_reserves_no_more_than_torchs_trees() -> None:
    runner = Runner(None, timeout_s=280)
    found = {
        backend: measure(runner, "mlp-training", backend, devices=False, tolerance=0.01)
        for backend in ("reduce-overhead", "memprof")
    }
    _holds(found)
    # AND trains, with all graphs, on a device that has hardly more than those reserved
    mib = int(1.02 * (found["reduce-overhead"].mib("reserved_peak") + CONTEXT_MIB))
    outcome = runner.run("mlp-training", "memprof", mib)
    assert outcome["ended"] == "ok", outcome
    assert outcome["launches"] == found["memprof"].outcome["launches"]


@pytest.mark.simgpu
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("workload", "layers"),
    [
        ("gpt2-training", None),
        ("gpt2-accumulation", 2),
        ("gpt2-graph-breaks", 6),
        ("llama-checkpointed", 2),
        ("bert-inference", 2),
        ("unet-training", None),
    ],
)
def test_memprof_runs_where_the_others_run(workload: str, layers: int | None) -> None:
    runner = Runner(layers, timeout_s=900)
    found = {b: measure(runner, workload, b, devices=True, tolerance=0.005) for b in BACKENDS}
    _holds(found)
    least = min(found[b].runs_on_mib or AMPLE_MIB for b in ("inductor", "reduce-overhead"))
    mine = found["memprof"].runs_on_mib
    assert mine is not None
    assert mine <= 1.02 * least, f"memprof needs {mine} MiB, another {least}"
    # AND not by giving graphs up
    assert found["memprof"].with_graphs_mib is not None
    graphs = found["reduce-overhead"].with_graphs_mib
    assert graphs is not None
    assert found["memprof"].with_graphs_mib <= 1.02 * graphs

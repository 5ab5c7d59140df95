"""memprof takes no device memory of its own, at real sizes.

The runs are those of benchmarks/device_memory.py: fresh processes on a simulated device that
computes nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import device_memory
from device_memory import CONTEXT_MIB, MIB, run


@pytest.fixture
def started_as_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh processes are of the script that runs."""
    monkeypatch.setattr(sys, "argv", [device_memory.__file__])


def _holds(mine: dict[str, Any], trees: dict[str, Any]) -> None:
    assert "error" not in mine
    assert "error" not in trees
    ratio = mine["reserved"] / trees["reserved"]
    assert ratio <= 1.01, f"memprof reserves {ratio:.3f} times what torch's trees do"
    assert mine["launches"] == trees["launches"] > 0


@pytest.mark.simgpu
@pytest.mark.usefixtures("started_as_the_benchmark")
def test_memprof_reserves_no_more_than_torchs_trees() -> None:
    trees, mine = (run("mlp-training", backend, None) for backend in ("reduce-overhead", "memprof"))
    _holds(mine, trees)
    # AND trains, with all graphs, on a device that has hardly more than those reserved
    little = run(
        "mlp-training", "memprof", None, int(1.02 * (trees["reserved"] / MIB + CONTEXT_MIB))
    )
    assert "error" not in little
    assert little["launches"] == mine["launches"]


@pytest.mark.simgpu
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("started_as_the_benchmark")
@pytest.mark.parametrize(
    ("workload", "layers"),
    [
        ("gpt2-training", None),
        ("gpt2-accumulation", 2),
        ("gpt2-graph-breaks", 6),
        ("llama-checkpointed", 2),
        ("bert-inference", 2),
        ("resnet50-training", None),
    ],
)
def test_memprof_runs_where_torchs_trees_run(workload: str, layers: int | None) -> None:
    trees, mine = (run(workload, backend, layers) for backend in ("reduce-overhead", "memprof"))
    _holds(mine, trees)
    # AND trains, with all graphs, on a device that has hardly more than those reserved
    little = int(1.03 * (trees["reserved"] / MIB + CONTEXT_MIB))
    same = run(workload, "memprof", layers, little)
    assert "error" not in same
    assert same["launches"] == mine["launches"]

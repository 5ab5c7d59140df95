"""The runner of `make bench-simulate` counts what a script's allocator counted.

The scripts here allocate sizes that are known; published ones take minutes and are in
docs/simulation-accuracy.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import simulate_accuracy
from simulate_accuracy import GPUS, UNITS, SimulationError, missing, simulate
from simulate_cases import CASES, Case

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
assert dist.get_rank() == 0
own = torch.empty(int(sys.argv[1]) * 2**20, dtype=torch.uint8, device="cuda")
all_of_them = torch.empty(own.numel() * dist.get_world_size(), dtype=torch.uint8, device="cuda")
dist.all_gather_into_tensor(all_of_them, own)
"""


def case(script: Path, counter: str = "allocated", args: str = "32", gpu: str = "a10g") -> Case:
    return Case(
        id="known",
        about="",
        source="",
        figure=80.0,
        unit="MiB",
        counter=counter,
        gpu=gpu,
        then="",
        script=str(script),
        args=args,
        world_size=4,
    )


@pytest.mark.simgpu
@pytest.mark.parametrize(("counter", "peak"), [("allocated", 160.0), ("reserved", 160.0)])
def test_a_rank_of_several_is_counted_to_the_byte(
    tmp_path: Path, counter: str, peak: float
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    outcome = simulate(case(script, counter), limit=120)
    assert outcome.simulated == peak
    assert outcome.difference == 100.0


@pytest.mark.simgpu
def test_a_run_that_does_not_fit_is_an_error_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(SimulationError, match="out of memory"):
        simulate(case(script, args="8000"), limit=120)


def test_cases_can_be_run_and_told_apart() -> None:
    folder = Path(simulate_accuracy.__file__).parent / "simulate"
    assert len({c.id for c in CASES}) == len(CASES)
    for c in CASES:
        assert (folder / c.script).is_file(), c.id
        assert c.gpu in GPUS, c.id
        assert c.unit in UNITS, c.id
        assert c.counter in ("allocated", "reserved", "active"), c.id


def test_a_package_that_is_not_here_is_named() -> None:
    known = Case("x", "", "", 1.0, "MiB", "reserved", "a10g", "", "x.py", needs=("pytest==0",))
    (reason,) = missing(known)
    assert reason.startswith("pytest==0 (there is ")

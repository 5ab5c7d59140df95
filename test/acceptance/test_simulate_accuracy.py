"""The runner of `make bench-simulate` counts what a script's allocator counted.

The script here allocates sizes that are known; published ones take minutes and are in
docs/simulation-accuracy.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from simulate_accuracy import Case, SimulationError, missing, simulate

SCRIPT = """
import sys
import torch

torch.empty(int(sys.argv[1]) * 2**20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.simgpu
def test_a_script_is_counted_to_the_byte_or_does_not_fit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def case(args: str) -> Case:
        return Case(
            id="known",
            about="",
            source="",
            figure=80.0,
            unit="MiB",
            counter="reserved",
            gpu="a10g",
            then="",
            script=str(script),
            args=args,
            needs=("pytest==0",),
        )

    assert simulate(case("160"), limit=120) == 160
    with pytest.raises(SimulationError, match="out of memory"):
        simulate(case("80000"), limit=120)
    # AND a package that is not here is named
    (reason,) = missing(case("160"))
    assert reason.startswith("pytest==0 (there is ")

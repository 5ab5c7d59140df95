"""What is said of a curve."""

from __future__ import annotations

import pytest

from memprof.fit.table import BUDGET, Row, render_budget
from memprof.fit.tries import Tried
from memprof.simulated_cuda.gpus import find_gpu


@pytest.mark.parametrize(("flops", "is_said"), [(0, True), (5, False)])
def test_a_script_that_compiles_nothing_is_told_so(flops: int, is_said: bool) -> None:
    gpu = find_gpu("t4")
    tries = [
        Tried(
            values={BUDGET: budget},
            gpu=gpu.key,
            memory=gpu.memory,
            fits=True,
            needed=1 << 30,
            reserved=1 << 29,
            allocated=1 << 29,
            parts=[],
            limit="",
            flops=flops,
            changed=[],
            idle=[],
            notes=[],
            seconds=1.0,
        )
        for budget in ("0", "1")
    ]
    row = Row(gpu, {})
    row.tries, row.best = tries, tries[-1]
    assert ("changes nothing" in render_budget(row, 2, 0)) is is_said

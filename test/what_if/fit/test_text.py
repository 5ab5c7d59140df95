"""What is said of a curve."""

from __future__ import annotations

import msgspec
import pytest

from memprof.simulated_cuda.gpus import Gpu, find_gpu
from memprof.what_if.fit.table import BUDGET, Row, budget_row, render_budget
from memprof.what_if.fit.tries import Tried
from memprof.what_if.simulate.partitions import DRAWN_ANEW


def tried(budget: str, flops: int, notes: list[str]) -> Tried:
    gpu = find_gpu("t4")
    return Tried(
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
        notes=notes,
        seconds=1.0,
    )


def test_a_budget_with_wrong_gradients_is_no_answer() -> None:
    # GIVEN a program with dropout, of which no budget above 0.3 fits
    class Runs:
        def run(self, gpu: Gpu, values: dict[str, str]) -> Tried:
            found = tried(values[BUDGET], 5, [DRAWN_ANEW])
            return msgspec.structs.replace(found, fits=float(values[BUDGET]) <= 0.3)

    row = budget_row(find_gpu("t4"), {}, Runs(), lambda row, tried: None)  # type: ignore[arg-type]
    assert row.best is None
    text = render_budget(row, 2, 0)
    assert text.startswith("No activation memory budget fits Tesla T4 with right gradients\n")
    assert "wrong gradients" in text.partition("\n")[2]
    assert "pytorch/pytorch#190758" in text


@pytest.mark.parametrize(("flops", "is_said"), [(0, True), (5, False)])
def test_a_script_that_compiles_nothing_is_told_so(flops: int, is_said: bool) -> None:
    gpu = find_gpu("t4")
    tries = [tried(budget, flops, []) for budget in ("0", "1")]
    row = Row(gpu, {})
    row.tries, row.best = tries, tries[-1]
    assert ("changes nothing" in render_budget(row, 2, 0)) is is_said

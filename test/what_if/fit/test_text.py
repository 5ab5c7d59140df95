"""Words about a row."""

from __future__ import annotations

from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.fit.table import Row, render
from memprof.what_if.fit.tries import Tried
from memprof.what_if.fit.variables import parse_variable
from memprof.what_if.simulate.partitions import DRAWN_ANEW


def test_what_makes_gradients_wrong_is_said() -> None:
    # GIVEN a program with dropout, and a budget with which its backward draws new numbers
    gpu = find_gpu("t4")
    best = Tried(
        values={"BUDGET": "0.3"},
        gpu=gpu.key,
        memory=gpu.memory,
        fits=True,
        needed=1 << 30,
        reserved=1 << 29,
        allocated=1 << 29,
        notes=[DRAWN_ANEW],
    )
    row = Row(gpu, {}, tries=[best], best=best)
    text = render([row], [parse_variable("BUDGET=0.1..0.3")], 1)
    assert "wrong gradients" in text.partition("\n")[2]
    assert "pytorch/pytorch#190758" in text

"""What a gate says of what a test took: pure data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memprof.profiler.model import (
    AllocationFailure,
    Category,
    DeviceAccount,
    Held,
    PoolShare,
    Profile,
    SourceFrame,
    WhyNot,
)
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.gate.item import add_row, baseline_path, begin_table, judge, read_mark
from memprof.what_if.simulate.command_line import BadInput
from memprof.what_if.simulate.parent import Simulation
from memprof.what_if.simulate.request import Outcome

MIB = 1 << 20
NODE = "test_model.py::TestStep::test_train[a/b-2 layers]"


def a_mark(arguments: dict[str, object]) -> Any:
    return SimpleNamespace(args=(), kwargs=arguments)


def took(block: int, other: int = 100 * MIB) -> Simulation:
    """A test whose module ``Block`` has so many bytes, of all that it took."""
    rows = [
        Held(
            Category.ACTIVATION,
            block,
            1,
            modules="Model > Block",
            frame=SourceFrame("model.py", 12, "forward", "return self.up(x)"),
            nodes="addmm_3",
            compiled=True,
        ),
        Held(Category.PARAMETER, other, 1, modules="Model"),
    ]
    reserved = block + other
    pools = [PoolShare("general", reserved, 0, 1, 0)]
    account = DeviceAccount(
        "cuda:0", reserved=reserved, most_allocated=reserved, rows=rows, pools=pools
    )
    return Simulation(find_gpu("t4"), True, None, Outcome(accounts=[account], profile=Profile()))


def judged(tmp_path: Path, simulation: Simulation, update: bool = False, **mark: object) -> str:
    gate = read_mark(a_mark(mark))
    return judge(NODE, tmp_path / "test_model.py", gate, simulation, update=update)[0]


def test_a_limit_holds_to_the_byte(tmp_path: Path) -> None:
    assert judged(tmp_path, took(28 * MIB), limit="128 MiB") == ""
    problem = judged(tmp_path, took(28 * MIB + 1), limit="128 MiB")
    assert "reserved 128 MiB (134,217,729 B) on Tesla T4, more than its limit" in problem
    assert "What is reserved at the peak:" in problem
    assert "activation" in problem


def test_three_per_cent_in_one_module_are_named(tmp_path: Path) -> None:
    assert judged(tmp_path, took(100 * MIB), update=True, growth="0 %") == ""
    assert baseline_path(NODE, tmp_path / "test_model.py").exists()
    assert judged(tmp_path, took(100 * MIB), growth="0 %") == ""
    assert judged(tmp_path, took(103 * MIB), growth="1.5 %") == ""  # of all
    problem = judged(tmp_path, took(103 * MIB), growth="1 %")
    assert "1.50 % more than its baseline of 200 MiB" in problem
    lines = problem.splitlines()
    assert "   +3.00 MiB  Model > Block  (100 MiB before)" in lines
    assert "   +3.00 MiB  model.py: return self.up(x)  (100 MiB before)" in lines
    # Writing it anew makes it pass.
    assert judged(tmp_path, took(103 * MIB), update=True, growth="0 %") == ""
    assert judged(tmp_path, took(103 * MIB), growth="0 %") == ""
    assert judged(tmp_path, took(90 * MIB), growth="0 %") == ""


def test_what_cannot_be_compared_fails(tmp_path: Path) -> None:
    assert "has no baseline" in judged(tmp_path, took(MIB), growth="0 %")
    path = baseline_path(NODE, tmp_path / "test_model.py")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no profile")
    assert "cannot be read" in judged(tmp_path, took(MIB), growth="0 %")
    nothing = Simulation(find_gpu("t4"), None, None, Outcome())
    assert "put nothing on a CUDA device" in judged(tmp_path, nothing, limit="1 GiB")


def test_a_baseline_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "memprof-baselines").write_text("in the way of the folder")
    with pytest.raises(BadInput, match="baseline cannot be written"):
        judged(tmp_path, took(MIB), update=True)


def test_out_of_memory_says_who_asked(tmp_path: Path) -> None:
    simulation = took(MIB)
    frame = SourceFrame("model.py", 12, "forward")
    failure = AllocationFailure(wanted=GIB, requested=GIB, why=WhyNot.TOO_LARGE, frame=frame)
    simulation.outcome.out_of_memory = DeviceAccount("cuda:0", failure=failure)
    problem = judged(tmp_path, simulation, limit="1 GiB")
    assert "ran out of memory on Tesla T4 (14.7 GiB): 1.00 GiB at model.py:12" in problem


def test_a_row_of_the_table(tmp_path: Path) -> None:
    gate = read_mark(a_mark({"limit": "200 MiB", "growth": "0 %"}))
    file = tmp_path / "test_model.py"
    judge(NODE, file, gate, took(100 * MIB), update=True)
    _, row = judge(NODE, file, gate, took(103 * MIB), update=False)
    table = tmp_path / "table.md"
    begin_table(str(table))
    add_row(str(table), row)
    *_, last = table.read_text().splitlines()
    assert last == (
        f"| `{NODE}` | t4 | 203 MiB | 200 MiB | 203 MiB | 200 MiB | +1.50 % | **failed** |"
    )


GIB = 1 << 30


@pytest.mark.parametrize(
    "mark",
    [
        {"limit": "128"},
        {"limit": 0},
        {"limit": True},
        {"limit": 1.5},
        {"limit": "much"},
        {"growth": 0.1},
        {"growth": "-1 %"},
        {"growth": "1"},
        {"gpu": 80},
        {"limits": "1 GiB"},
    ],
)
def test_bad_marks_are_refused(mark: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        read_mark(a_mark(mark))


def test_names_of_tests_make_file_names(tmp_path: Path) -> None:
    file = tmp_path / "test_model.py"
    path = baseline_path(NODE, file)
    assert path.parent == tmp_path / "memprof-baselines" / "test_model"
    assert path.name.startswith("TestStep.test_train[a_b-2_layers]-")
    # Names that differ in what no file name can have, differ.
    assert baseline_path(NODE.replace("/", " "), file) != path
    assert baseline_path("test_model.py::test_a[1-x]", file).name == "test_a[1-x].memprof"

"""An account of one instant in other tools' formats: its sums, and what has no use for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from outputs import invoke
from profile_builder import training

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import DeviceAccount, Profile, SourceFrame
from memprof.profiler.model.device import Category, Held, PoolShare
from memprof.profiler.views.export import export_profile
from memprof.profiler.views.export.tables import to_pandas

LINE = SourceFrame("/home/me/train.py", 7, "step", "y = model(x)")


def account() -> DeviceAccount:
    return DeviceAccount(
        "cuda:0",
        reserved=1000,
        rows=[
            Held(Category.PARAMETER, 400, 4, frame=LINE),
            Held(Category.ACTIVATION, 200, 2, "Model > Block; x", LINE, "mul, add", True),
            Held(Category.ACTIVATION, 50, 1, "Model > Block; x", LINE, "mul, add", True),
            Held(Category.TEMPORARY, 100, 1, detail="all-gathered by FSDP"),
        ],
        rounding=30,
        pools=[PoolShare("general", 900, 150, 3, 100), PoolShare("private 1", 100, 50, 1, 50)],
        unexplained=20,
    )


def test_its_table_adds_up_to_what_was_reserved() -> None:
    pytest.importorskip("pandas")
    table = to_pandas(Profile(accounts=[account()]))["account"].to_dict("records")
    assert sum(row["nbytes"] for row in table) == account().reserved
    assert table[1]["modules"] == "Model > Block; x"
    assert (table[1]["file"], table[1]["line"]) == (LINE.file, LINE.line)
    assert [row["category"] for row in table[4:]] == [
        "rounding",
        "awaiting streams",
        "free in general segments",
        "free in private 1 segments",
        "not explained",
    ]


@pytest.mark.parametrize(
    "words",
    [["export", "-f", "perfetto"], ["export", "-f", "memory-viz"]],
)
def test_what_shows_time_refuses_an_instant(words: list[str], tmp_path: Path) -> None:
    file, out = tmp_path / "run.memprof", tmp_path / "out.html"
    write_profile(Profile(accounts=[account()]), file)
    result = invoke(*words, file, "-o", out, status=2)
    assert "this profile has the account of one instant" in result.stderr
    assert not out.exists()


def test_an_account_beside_calls_is_no_reason_to_refuse(tmp_path: Path) -> None:
    profile = training()
    profile.accounts = [account()]
    for form in ("perfetto", "memory-viz", "json"):
        export_profile(profile, form, tmp_path / form)

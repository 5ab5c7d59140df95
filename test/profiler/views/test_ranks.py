"""Several ranks: merging, comparing, what is warned of."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from expecttest import TestCase
from outputs import invoke
from profile_builder import MIB, training

from memprof.profiler.file.profile_file import read_profiles, write_profile
from memprof.profiler.model import LedgerEntry, LedgerKind, Process, Profile
from memprof.profiler.verbs import report_text
from memprof.profiler.views.compare.ranks import compare_ranks
from memprof.profiler.views.report import Style

from .test_diff import larger


def rank(r: int, world: int = 4, profile: Profile | None = None) -> Profile:
    return dataclasses.replace(
        profile or training(), process=Process(r, r, world, f"node{r // 2}", 100 + r)
    )


def job() -> list[Profile]:
    """Four ranks, in no order; rank 2 keeps 4 MiB more."""
    return [rank(3), rank(2, profile=larger(training(), 4 * MIB)), rank(0), rank(1)]


def warnings(*profiles: Profile) -> list[str]:
    return compare_ranks(profiles).warnings


def test_a_missing_rank() -> None:
    assert warnings(rank(0), rank(1), rank(3)) == [
        "of 4 ranks 2 missing: their files were not given"
    ]


def test_a_rank_that_is_there_twice() -> None:
    assert warnings(rank(0, 1), rank(0, 1)) == [
        "rank 0 there more than once: are these files of one job?"
    ]


def test_an_unfinished_rank() -> None:
    cut = dataclasses.replace(rank(1, 2), complete=False)
    assert warnings(rank(0, 2), cut) == ["rank 1 did not come to the end of its session"]


@pytest.mark.parametrize(
    ("compile_id", "recompiles"), [("0/0", 0), ("0/2", 1), ("!1", 0), ("!1/0/0", 0), (None, 0)]
)
def test_what_is_a_recompilation(compile_id: str | None, recompiles: int) -> None:
    profile = training()
    profile.graphs[0].compile_id = compile_id
    assert compare_ranks([profile]).rows[0].recompiles == recompiles


def test_skips_are_counted() -> None:
    skips = training()
    skips.ledger = [LedgerEntry(1, LedgerKind.SKIP, 0, "budget", count=3)]
    found = compare_ranks([rank(0, 2), rank(1, 2, skips)])
    assert [r.skips for r in found.rows] == [0, 3]


def test_ranks_without_calls() -> None:
    found = compare_ranks([rank(0, 2, Profile()), rank(1, 2)])
    assert [r.peak for r in found.rows] == [0, 26 * MIB]
    assert found.imbalance[0].excess == 1.0


class TestLook(TestCase):
    def test_text(self) -> None:
        self.assertExpectedInline(
            report_text(job(), Style(ascii_only=True)),
            """\
4 of 4 ranks
  The report of one rank: memprof report FILE --rank N

By rank
rank      peak  graphs  calls  recompiled  skips  device  host   pid
--------------------------------------------------------------------
   0  26.0 MiB       3      9           0      0  cpu     node0  100
   1  26.0 MiB       3      9           0      0  cpu     node0  101
   2  30.0 MiB       3      9           0      0  cpu     node1  102
   3  26.0 MiB       3      9           0      0  cpu     node1  103

Imbalance
  Categories are of each rank's peak.
figure             lowest  rank      mean   highest  rank  above the mean
-------------------------------------------------------------------------
peak             26.0 MiB     0  27.0 MiB  30.0 MiB     2          11.1 %
activation       8.00 MiB     0  9.00 MiB  12.0 MiB     2          33.3 %
parameter        6.00 MiB     0  6.00 MiB  6.00 MiB     0           0.0 %
temporary        6.00 MiB     0  6.00 MiB  6.00 MiB     0           0.0 %
optimizer state  4.00 MiB     0  4.00 MiB  4.00 MiB     0           0.0 %
autograd detail  1.00 MiB     0  1.00 MiB  1.00 MiB     0           0.0 %
input            1.00 MiB     0  1.00 MiB  1.00 MiB     0           0.0 %
""",
        )


# The command


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """As ranks write them; of every kind of file."""
    out = []
    for profile in job():
        assert profile.process is not None
        n = profile.process.rank
        path = tmp_path / f"{n}.memprof"
        write_profile(profile, path)
        out.append(str(path))
    return out


def test_merge_and_report(tmp_path: Path, files: list[str]) -> None:
    out = str(tmp_path / "all.memprof")
    result = invoke("export", "-f", "memprof", *files, "-o", out)
    assert result.output == f"{out}: 4 profiles of a job of 4 ranks\n"
    assert read_profiles(out) == sorted(job(), key=lambda p: p.process.rank if p.process else 0)
    # AND the report compares ranks, or is one rank's
    assert invoke("report", out).output == report_text(job(), Style())
    assert json.loads(invoke("report", out, "--json").output)["rows"][2]["peak"] == 30 * MIB
    one = invoke("report", out, "--rank", "2")
    assert "rank 2 of 4 (local rank 2, host node1, process 102)" in one.output
    assert one.output == invoke("report", files[1]).output
    invoke("report", out, "--section", "ledger", "--rank", "0")


def test_merged_files_merge_further(tmp_path: Path, files: list[str]) -> None:
    a, b, c = (str(tmp_path / f"{n}.all.memprof") for n in "abc")
    invoke("export", "-f", "memprof", *files[:2], "-o", a)
    invoke("export", "-f", "memprof", *files[2:], "-o", b)
    invoke("export", "-f", "memprof", a, b, "-o", c)
    assert len(read_profiles(c)) == 4


def test_merge_without_an_output_writes_nothing(tmp_path: Path, files: list[str]) -> None:
    before = {path: Path(path).read_bytes() for path in files}
    result = invoke("export", "-f", "memprof", *files, status=2)
    assert "Missing option '--output' / '-o'" in result.stderr
    assert {str(path): path.read_bytes() for path in tmp_path.iterdir()} == before
    # Merging again, or more, is no loss.
    out = str(tmp_path / "all.memprof")
    for given in (files[:2], files, files):
        invoke("export", "-f", "memprof", *given, "-o", out)


def test_what_can_go_wrong(tmp_path: Path, files: list[str]) -> None:
    out = str(tmp_path / "all.memprof")
    for args, says in (
        (
            ["export", "-f", "memprof", *files, "-o", str(tmp_path / "all.json")],
            "let its name end in .memprof",
        ),
        (["export", "-f", "memprof", files[0], files[0], "-o", out], "rank 3 comes from 2 files"),
        (["export", "-f", "memprof", str(tmp_path / "no"), "-o", out], "No such file"),
        (["export", "-f", "memprof", "-o", out], "Missing argument"),
        (
            ["export", "-f", "memprof", *files, "-o", str(tmp_path / "no" / "all.memprof")],
            "the folder must exist",
        ),
    ):
        assert says in invoke(*args, status=2).stderr
    assert not Path(out).exists()
    invoke("export", "-f", "memprof", *files, "-o", out)
    for args, says in (
        (
            ["report", out, "--section", "ledger"],
            "it holds 4 profiles, of ranks 0, 1, 2, 3: say whose is meant",
        ),
        (["report", out, "--rank", "7"], "it has no rank 7, but 0, 1, 2, 3"),
        (["report", out, "--device", "cuda:1"], "this profile has no memory on 'cuda:1'"),
    ):
        assert says in invoke(*args, status=2).stderr


def test_a_process_of_which_nothing_is_known_has_its_place_as_rank(tmp_path: Path) -> None:
    # GIVEN files whose processes are not known, e.g. those of documentation
    for name, nbytes in (("a", 0), ("b", 4 * MIB)):
        profile = larger(training(), nbytes) if nbytes else training()
        write_profile(dataclasses.replace(profile, process=None), tmp_path / f"{name}.memprof")
    out = str(tmp_path / "all.memprof")
    invoke(
        "export",
        "-f",
        "memprof",
        str(tmp_path / "a.memprof"),
        str(tmp_path / "b.memprof"),
        "-o",
        out,
    )
    # THEN the numbers of the comparison are those that --rank takes
    rows = json.loads(invoke("report", out, "--json").output)["rows"]
    assert [(r["rank"], r["peak"] // MIB) for r in rows] == [(0, 26), (1, 30)]
    assert "30.0 MiB" in invoke("report", out, "--rank", "1").output
    assert "it has no rank 2, but 0, 1" in invoke("report", out, "--rank", "2", status=2).output

"""The command line: what it prints, and one clear line for everything that can go wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from expecttest import TestCase
from framing import framed, header, packed
from outputs import invoke
from profile_builder import MIB, training

from memprof.cli import main
from memprof.profiler.file.profile_file import (
    encode_profile,
    write_profile,
    write_profiles,
)
from memprof.profiler.model import (
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    MemorySnapshot,
    Process,
    Profile,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.support.json_text import to_json
from memprof.profiler.verbs import report_text
from memprof.profiler.views.report import Style
from memprof.profiler.views.report.text_page import PLAIN


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_profile(training(), tmp_path / "p.memprof")
    return str(tmp_path / "p.memprof")


def whole(style: Style = PLAIN) -> str:
    profile = training()
    return report_text([profile], style)


class TestHelp(TestCase):
    def test_help(self) -> None:
        self.assertExpectedInline(
            invoke("--help").output,
            """\
Usage: memprof [OPTIONS] COMMAND [ARGS]...

  Where the memory of compiled PyTorch code goes.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  report    Print what is in a profile: the peak, what it is made of and...
  top       Show what a running job does: its devices now and at most, what...
  diff      Print what grew from one profile to another, by category,...
  export    Write a profile in another tool's format, or those of several...
  run       Run a script nobody changed with the memory tracker on.
  simulate  Tell how much device memory a CUDA script takes, without a GPU.
  fit       Find what fits: the largest batch, the smallest GPU.
  config    Show the settings of the memory tracker.
  doctor    Say what is installed here, what works and what does not.
""",
        )

    def test_version(self) -> None:
        assert invoke("--version").output.startswith("memprof, version ")

    def test_every_command_has_help(self) -> None:
        for name in main.list_commands(click.Context(main)):
            assert f"Usage: memprof {name}" in invoke(name, "--help").output

    def test_report_help(self) -> None:
        self.assertExpectedInline(
            invoke("report", "--help").output,
            """\
Usage: memprof report [OPTIONS] FILE

  Print what is in a profile: the peak, what it is made of and what to change.

  The last line says what else --full prints; a page (-o) and --json have all of
  it, too.

  FILE is a profile written by memprof, or by a tracker. Of a file of several
  ranks it compares the ranks; --rank chooses one.

Options:
  --rank INTEGER RANGE      Whose profile, in a file of several ranks.  [x>=0]
  --full                    All of it, not only what fits a screen.
  --json                    The whole report as JSON, in bytes and ns.
  --top INTEGER RANGE       Rows in each table; the rest is added up. Default:
                            10, of a short report 5.  [x>=1]
  --device TEXT             Whose memory, e.g. cuda:0. Default: the one with the
                            most.
  --bytes                   Bytes with all digits.
  -o, --output [PAGE]       Write a page for the browser here, or beside FILE:
                            one file, no network.
  --section [leaks|ledger]  This alone, and all of it: what grows from step to
                            step, by how much, since when, who made it and who
                            refers to it; or what memprof did, declined and gave
                            up on, and why.
  --fail-on-leaks           Exit with 1 if memory grows, and with 2 if the file
                            cannot tell.
  -h, --help                Show this message and exit.
""",
        )


def test_report(path: str) -> None:
    result = invoke("report", path, "--full")
    assert result.output == whole()


def test_a_short_report_says_what_else_there_is(path: str) -> None:
    # GIVEN a report as long as a screen
    short = invoke("report", path).output
    assert short == whole(Style(top=5, short=True))
    assert short.count("\n") <= 50
    # THEN it begins with the device's total, and what it leaves out is named at its end
    assert short.startswith("Peak of known live memory on cpu: 26.0 MiB (27,262,976 B)\n")
    said, _, more = short.rpartition("\nMore in the whole report ")
    assert "Live at the peak, by category" in said
    assert "What to change" in said
    titles = {
        "Live at the peak, by module": "compiled code by module",
        "Graphs;": "graphs",
        "Ledger": "ledger",
        "What is not counted": "what is not counted",
    }
    for title, name in titles.items():
        assert title in whole()
        assert title not in said
        assert name in " ".join(more.split())


def test_report_options(path: str) -> None:
    options = ("--top", "2", "--bytes", "--device", "cpu")
    result = invoke("report", path, "--full", *options)
    assert result.output == whole(Style(top=2, exact=True))
    assert invoke("report", path, *options).output == whole(Style(top=2, exact=True, short=True))


def test_report_takes_the_width_of_the_environment(path: str) -> None:
    result = invoke("report", path, "--full", COLUMNS="80")
    assert result.output == whole(Style(width=80))
    for strange in ("", "wide", "0", "-3"):
        invoke("report", path, COLUMNS=strange)


def test_report_json(path: str) -> None:
    result = invoke("report", path, "--json")
    found = json.loads(result.output)
    assert found["peak"]["nbytes"] == 26 * MIB
    assert found["views"]["category"]["parts"][0] == {
        "key": "activation",
        "nbytes": 8 * MIB,
        "storages": 1,
        "graph": None,
        "note": "",
    }
    assert found["views"]["line"]["unattributed"] == 0


def test_ledger(path: str) -> None:
    result = invoke("report", path, "--section", "ledger")
    assert result.output.splitlines()[2].split() == [
        "00:00:01.000", "compiled", "0/0", "forward", "1", "first", "compilation",
    ]  # fmt: skip
    (first, *_) = json.loads(invoke("report", path, "--section", "ledger", "--json").output)
    assert first["kind"] == "compiled"


# What can go wrong


@pytest.mark.parametrize("command", [["report"], ["report", "--section", "ledger"]])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read it: No such file or directory; check the path\n"),
        (b"", "the file is empty"),
        (encode_profile(training())[:40], "truncated"),
        (b"hello", "not a memprof profile"),
        (b'{"traceEvents":[]}', "a profile begins with the bytes"),
        (b'{"format":"memprof-profile","schema_version":1}', "a file of memprof 0.1.0"),
        (packed([header(7)]), "7"),
        (packed([header("x\x1b[31my\nz")]), "Expected `int`, got `str` - at `$.schema_version`"),
        (packed([header(format="x\x1b[31my\nz")]), r"'x\x1b[31my\nz'"),
        (packed([header(7, "\x1b]0;t")]), r"\x1b]0;t"),
    ],
)
def test_bad_files_give_one_line_and_exit_2(
    tmp_path: Path, command: list[str], content: bytes | None, says: str
) -> None:
    file = tmp_path / "p.memprof"
    if content is not None:
        file.write_bytes(content)
    result = invoke(*command, file, status=2)
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {file}: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit)


def test_what_is_not_read_is_a_line_on_standard_error(tmp_path: Path) -> None:
    document = json.loads(to_json(training()))
    document["graphs"][2]["programs"][0]["storages"][0]["origin"] = "x"
    (tmp_path / "p.memprof").write_bytes(framed(document))
    result = invoke("report", "--full", str(tmp_path / "p.memprof"))
    assert result.stderr.startswith(f"Warning: {tmp_path / 'p.memprof'}: not read: what comes af")
    assert result.stderr.endswith(
        "Invalid enum value 'x' - at `$.programs.items[0].storages[0].origin`\n"
    )
    assert "left out, since the file is damaged: 1 part\n" in result.stdout
    # AND nothing is left behind that would say it twice
    assert logging.getLogger("memprof").handlers == []


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["report", "--section", "leaks"],
        ["report", "--section", "ledger"],
        ["report", "-o", "page.html"],
        ["export", "-f", "perfetto", "-o", "trace.json"],
        ["diff"],
        ["top", "--once"],
    ],
)
def test_a_file_that_contradicts_itself_is_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a profile that contradicts itself
    path = str(tmp_path / "p.memprof")
    broken = training()
    broken.graphs.pop(0)
    (tmp_path / "p.memprof").write_bytes(encode_profile(broken))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*words, path, *([path] if words == ["diff"] else [])])
    if result.exit_code:
        assert result.exit_code == 2
        assert result.stderr.startswith(f"Error: {path}")
        said = " contradicts itself: KeyError: 0 (ledger.py, line "
        assert said in result.stderr or "ledger" not in words
        assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit | None)


def test_bad_options(path: str) -> None:
    for args, says in (
        (["--top", "0"], "0 is not in the range x>=1"),
        (["--top", "x"], "'x' is not a valid integer"),
        (["--device", "cuda:7"], "has no memory on 'cuda:7'; devices in it: cpu"),
        (["--json", "--nonsense"], "No such option"),
        (["-o", "-"], "writes files only"),
    ):
        assert says in invoke("report", path, *args, status=2).stderr


def test_bad_options_of_other_commands(path: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for args, says in (
        (["report", path, "-o", out, "--section", "leaks"], "leave the other options out"),
        (["export", path, "-f", "json", "-o", "-"], "writes files only"),
        (["run", "--intervall=1", "train.py"], "--intervall"),
        (["top", path, "--interval", "nan"], "nan is no number of seconds"),
        (["top", path, "--interval", "inf"], "inf is not in the range"),
        (["simulate", "--timeout", "nan", "--", "x.py"], "nan is no number of seconds"),
        (["reprot", path], "No such command 'reprot'. Did you mean 'report'?"),
        (["export", path, path, "-f", "json", "-o", out], "-f memprof puts several into one"),
        (["gantt", path], "memprof gantt is now: memprof report FILE -o PAGE"),
        (["xyz", path], "No such command 'xyz'.\n"),
    ):
        result = invoke(*args, status=2)
        assert result.stdout == ""
        assert says in result.stderr
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_a_page_without_a_path_lies_beside_the_file(tmp_path: Path) -> None:
    file = str(tmp_path / "run.b.memprof")
    write_profile(training(), file)
    result = invoke("report", file, "-o")
    page = tmp_path / "run.b.html"
    assert result.output.startswith(f"{page}: ")
    assert page.read_text().startswith("<!doctype html>")
    # AND what lies there and is read stays
    os.rename(file, page)
    assert "would be overwritten" in invoke("report", page, "-o", status=2).stderr


# Writing over what is read


@pytest.fixture
def names(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the file ``path``, as a user could write them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "soft.memprof").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    os.link(path, tmp_path / "hard.memprof")
    name = os.path.basename(path)
    return [path, name, f"./below/../{name}", "soft.memprof", f"folder/{name}", "hard.memprof"]


@pytest.mark.parametrize(
    "command",
    [
        ["report", "-o"],
        ["export", "-f", "perfetto", "-o"],
        ["export", "-f", "memory-viz", "-o"],
        ["export", "-f", "json", "-o"],
        ["export", "-f", "memprof", "-o"],
    ],
)
def test_an_output_that_is_the_input_is_refused(
    command: list[str], path: str, names: list[str]
) -> None:
    before = Path(path).read_bytes()
    for given in names:
        for read in (path, given):
            said = invoke(*command, given, read, status=2).stderr
            assert "is the file to read, and would be overwritten" in said
    assert Path(path).read_bytes() == before


# Devices and ranks


def test_a_device_that_only_the_tracker_or_the_data_flow_knows(tmp_path: Path) -> None:
    tracked = Profile(
        tracker=TrackerRecord(
            TrackerMetadata(end_ns=5),
            [MemorySnapshot(3, devices={"cuda:0": TrackedDevice(allocated_bytes=7)})],
        )
    )
    flowing = Profile(
        dataflow=DataFlowColumns(
            [DataFlowDevice("cuda:0", [1], {Category.INPUT: [4]}, 0,
                            [DataFlowStorage(4, Category.INPUT)])]
        )
    )  # fmt: skip
    for n, profile in enumerate((tracked, flowing)):
        path, out = str(tmp_path / f"{n}.memprof"), str(tmp_path / "out")
        write_profile(profile, path)
        for args in (
            ["report", path],
            ["report", path, "--json"],
            ["report", path, "-o", out],
        ):
            invoke(*args, "--device", "cuda:0")
            said = invoke(*args, "--device", "cuda:1", status=2).stderr
            assert "no memory on 'cuda:1'; devices in it: cuda:0" in said


def test_diff_of_one_rank_of_merged_files(tmp_path: Path) -> None:
    merged = str(tmp_path / "all.memprof")
    ranks = [replace(training(n + 1), process=Process(n, n, 2)) for n in range(2)]
    write_profiles(ranks, merged)
    assert "on the command line --rank" in invoke("diff", merged, merged, status=2).stderr
    invoke("diff", merged, merged, "--rank", "1", "--fail-over", "0")
    said = invoke("diff", merged, merged, "--rank", "5", status=2).stderr
    assert "it has no rank 5, but 0, 1" in said


# As a process


def process(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "PYTHONUTF8")}
    return subprocess.run(
        [sys.executable, "-m", "memprof", *args],
        capture_output=True,
        check=False,
        env={**environment, **env},
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_as_a_module_with_and_without_utf8(path: str, encoding: str) -> None:
    done = process("report", path, "--full", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding) == whole(Style(ascii_only=encoding != "utf-8"))


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_standard_output_that_takes_nothing(path: str, more: list[str]) -> None:
    # GIVEN a full disk behind standard output
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "memprof", "report", path, *more],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"Error: cannot write to standard output: No space left on device\n"


def test_closed_standard_output_and_a_reader_that_is_gone(path: str) -> None:
    for shell in (f'"{sys.executable}" -m memprof report "{path}" >&-',
                  f'"{sys.executable}" -m memprof report "{path}" | true'):  # fmt: skip
        done = subprocess.run(shell, shell=True, capture_output=True, check=False)
        assert b"Traceback" not in done.stderr
    # AND where nobody has told Python to ignore the signal, it ends the process as it does others
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "memprof", "report", path],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode in (1, -signal.SIGPIPE)

"""The command line: what it prints, and one clear line for everything that can go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from expecttest import TestCase
from profile_builder import MIB, training

from memprof.cli import main
from memprof.profiler.file import encode_profile, profile_schema, write_profile
from memprof.profiler.model import Profile
from memprof.profiler.report import Style, render_text, summarize


def invoke(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, list(args), env={"COLUMNS": "100", **(env or {})})


@pytest.fixture
def path(tmp_path: Path) -> str:
    write_profile(training(), tmp_path / "p.json.gz")
    return str(tmp_path / "p.json.gz")


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
  report  Print what is in a profile: the peak, what was live at it and...
  ledger  Print what memprof did, declined and gave up on, and why, in...
  diff    Print what grew from one profile to another, by category, module...
  merge   Put the profiles of several ranks into one file, OUT, which ends...
  gantt   Write a page with operations, compiled calls and memory over time.
  export  Write a profile in another tool's format.
  run     Run a script nobody changed with the memory tracker on.
  config  Show or change the settings of the memory tracker.
  schema  Print the JSON Schema of profile files.
  doctor  Say what is installed here, what works and what does not.
""",
        )

    def test_report_help(self) -> None:
        self.assertExpectedInline(
            invoke("report", "--help").output,
            """\
Usage: memprof report [OPTIONS] FILE

  Print what is in a profile: the peak, what was live at it and where it came
  from.

  FILE is a profile written by memprof: .json, .json.gz or .memprof. Of a file
  of several ranks it compares the ranks; --rank chooses one.

Options:
  --rank INTEGER RANGE  Whose profile, in a file of several ranks.  [x>=0]
  --json                The whole report as JSON, in bytes and ns.
  --top INTEGER RANGE   Rows in each table; the rest is added up.  [default: 10;
                        x>=1]
  --device TEXT         Whose memory, e.g. cuda:0. Default: the one with the
                        most.
  --bytes               Bytes with all digits.
  --html PATH           Write a page for the browser here instead: one file, no
                        network.
  -h, --help            Show this message and exit.
""",
        )


def test_report(path: str) -> None:
    result = invoke("report", path)
    assert result.exit_code == 0
    assert result.output == render_text(summarize(training()))


def test_report_options(path: str) -> None:
    result = invoke("report", path, "--top", "2", "--bytes", "--device", "cpu")
    assert result.exit_code == 0
    assert result.output == render_text(summarize(training()), Style(top=2, exact=True))


def test_report_takes_the_width_of_the_environment(path: str) -> None:
    result = invoke("report", path, env={"COLUMNS": "80"})
    assert result.output == render_text(summarize(training()), Style(width=80))
    for strange in ("", "wide", "0", "-3"):
        assert invoke("report", path, env={"COLUMNS": strange}).exit_code == 0


def test_report_json(path: str) -> None:
    result = invoke("report", path, "--json")
    assert result.exit_code == 0
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


def test_report_of_an_empty_profile(tmp_path: Path) -> None:
    write_profile(Profile(), tmp_path / "p.json")
    result = invoke("report", str(tmp_path / "p.json"))
    assert result.exit_code == 0
    assert "no peak" in result.output


def test_ledger(path: str) -> None:
    result = invoke("ledger", path)
    assert result.exit_code == 0
    assert result.output.splitlines()[2].split() == [
        "00:00:01.000", "compiled", "0/0", "forward", "1", "first", "compilation",
    ]  # fmt: skip


def test_schema() -> None:
    result = invoke("schema")
    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(json.dumps(profile_schema()))


# What can go wrong


@pytest.mark.parametrize("command", ["report", "ledger"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read it: No such file or directory"),
        (b"", "the file is empty"),
        (encode_profile(training())[:5000], "truncated"),
        (b"hello", "not JSON"),
        (b"\x80\x04\x95", "not JSON"),
        (b'{"traceEvents":[]}', "not a memprof profile"),
        (encode_profile(training()).replace(b'"schema_version":1', b'"schema_version":7'), "7"),
        (encode_profile(training()).replace(b'"origin":"input"', b'"origin":"x"', 1), "$.graphs"),
    ],
)
def test_bad_files_give_one_line_and_exit_2(
    tmp_path: Path, command: str, content: bytes | None, says: str
) -> None:
    file = tmp_path / "p.json"
    if content is not None:
        file.write_bytes(content)
    result = invoke(command, str(file))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {file}: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert isinstance(result.exception, SystemExit)


def test_folder_is_no_profile(tmp_path: Path) -> None:
    result = invoke("report", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give a file, not a folder" in result.stderr


def test_bad_options(path: str) -> None:
    for args, says in (
        (["--top", "0"], "0 is not in the range x>=1"),
        (["--top", "x"], "'x' is not a valid integer"),
        (["--device", "cuda:7"], "has memory on 'cuda:7'; devices in it: cpu"),
        (["--json", "--nonsense"], "No such option"),
        (["--html", "-"], "writes files only"),
    ):
        result = invoke("report", path, *args)
        assert result.exit_code == 2
        assert says in result.stderr


def test_bad_options_of_other_commands(path: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for args, says in (
        (["gantt", path, "-o", "-"], "writes files only"),
        (["gantt", path, "-o", out, "--calls", "2:1"], "'2:1' is empty: LAST comes before FIRST"),
        (["gantt", path, "-o", out, "--calls", "900:"], "the log has calls 1 to "),
        (["export", path, "-f", "collapsed", "-o", "-"], "writes files only"),
        (["run", "--intervall=1", "train.py"], "--intervall"),
    ):
        result = invoke(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
    assert os.listdir(tmp_path) == [os.path.basename(path)]


# As a process


def process(*args: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "PYTHONUTF8")}
    return subprocess.run(
        [sys.executable, "-m", "memprof", *args],
        capture_output=True,
        timeout=60,
        check=False,
        env={**environment, **env},
    )


def test_as_a_module(path: str) -> None:
    done = process("report", path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == render_text(summarize(training()))
    assert process("--version").stdout.startswith(b"memprof, version ")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_locale_without_utf8(path: str, encoding: str) -> None:
    done = process("report", path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode("ascii") == render_text(summarize(training()), Style(ascii_only=True))


def test_reader_that_stops_early(path: str) -> None:
    command = f'"{sys.executable}" -m memprof report "{path}" --top 100 | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().startswith("memprof 0.1.0")
    assert b"Traceback" not in done.stderr

"""Settings from all places, and what is said of wrong ones."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from outputs import checked, invoke

from memprof.profiler.sources.process.settings import (
    SettingsError,
    TrackerSettings,
    configured,
    find_file,
    toml_value,
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in list(os.environ):
        if name.startswith("MEMPROF_"):
            monkeypatch.delenv(name)
    return folder


def test_defaults() -> None:
    found = configured()
    assert (found.settings, found.origin, found.file) == (TrackerSettings(), {}, None)
    assert (found.settings.output_dir, found.settings.interval) == (".", 5.0)


def test_later_places_win(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[memprof]\ninterval = 1\nlargest = 2\noutput_dir = "x"\nenabled = false\n'
    (empty_folder / "memprof.toml").write_text(text)
    monkeypatch.setenv("MEMPROF_INTERVAL", "2.5")
    monkeypatch.setenv("MEMPROF_OUTPUT_DIR", "y")
    found = configured({"output_dir": Path("z"), "largest": None})
    assert found.settings == TrackerSettings(interval=2.5, largest=2, output_dir="z", enabled=False)
    assert found.origin == {
        "interval": "MEMPROF_INTERVAL",
        "largest": str(empty_folder / "memprof.toml"),
        "output_dir": "argument",
        "enabled": str(empty_folder / "memprof.toml"),
    }


def test_which_file_counts(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    above = empty_folder.parent
    (above / "memprof.toml").write_text("[memprof]\nlargest = 1\n")
    assert find_file() == above / "memprof.toml"
    # A project without our table does not end the search, one with it does.
    (empty_folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert find_file() == above / "memprof.toml"
    (empty_folder / "pyproject.toml").write_text("[tool.memprof]\nlargest = 3\n")
    assert configured().settings.largest == 3
    (empty_folder / "memprof.toml").write_text("[memprof]\nlargest = 4\n")
    assert configured().settings.largest == 4
    (above / "other.toml").write_text("[memprof]\nlargest = 5\n")
    monkeypatch.setenv("MEMPROF_CONFIG", str(above / "other.toml"))
    assert configured().settings.largest == 5
    monkeypatch.setenv("MEMPROF_CONFIG", "nowhere.toml")
    with pytest.raises(SettingsError, match="which is no file"):
        configured()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[memprof]\ninterval = \n", "not TOML: Invalid value (at line 2"),
        ("[memprof]\nintervall = 1\n", "there is no setting 'intervall'; did you mean interval?"),
        ("[memprof]\ninterval = 'x'\n", "interval is 'x': Expected `float`, got `str`"),
        ("[memprof]\ninterval = 0.001\n", "Expected `float` >= 0.01"),
        ("[memprof]\ninterval = nan\n", "Expected `float` >= 0.01"),
        ("[memprof]\ninterval = inf\n", "<= 1000000"),
        ("[memprof]\ninterval = 1e300\n", "<= 1000000"),
        ("[memprof]\ninterval = -1\n", "interval is -1: Expected `float` >= 0.01"),
        (f"[memprof]\ninterval = 1{'0' * 400}\n", "out of range"),
        (f"[memprof]\nlargest = {'9' * 5000}\n", "not TOML: Exceeds the limit"),
        ("[memprof]\nlargest = 9999999999999999999999\n", "Expected `int` <= 10000"),
        ("[memprof]\nmax_operations = 9223372036854775808\n", "<= 1000000"),
        (
            "[memprof]\noutput_dir = 'a\\u0000b'\n".replace("'", '"'),
            "Expected `str` matching regex",
        ),
        (f"x = {'[' * 50_000}", "not TOML"),
        (f"[memprof]\n{'x' * 100_000} = 1\n", "there is no setting 'xxxxx"),
        ("[memprof]\nlargest = 1.5\n", "largest is 1.5: Expected `int`, got `float`"),
        ("[memprof]\nlargest = true\n", "largest is True: Expected `int`, got `bool`"),
        ("[memprof]\nenabled = 1\n", "enabled is 1: Expected `bool`, got `int`"),
        ("[memprof]\noutput_dir = ''\n", "output_dir is '': Expected `str`"),
        ("memprof = 3\n", "`memprof` is 3, it must be a table"),
        ("[[backend]]\nname = 'x'\n", "`backend` is not read: settings stand in the table"),
        ("enable_memory_profiling = true\n[memprof]\n", "`enable_memory_profiling` is not read"),
        ("[memprof]\nenable_memory_profiling = true\n", "there is no setting 'enable_memory_prof"),
        (b"[memprof]\nx = '\xff'\n", "not TOML"),
    ],
)
def test_wrong_files(empty_folder: Path, text: str | bytes, says: str) -> None:
    path = empty_folder / "memprof.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as e:
        configured()
    assert says in str(e.value)
    assert str(e.value).startswith(str(path))
    assert len(str(e.value)) < 1_000
    assert invoke("config", "show", status=2).output.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("MEMPROF_INTERVAL", "soon", "MEMPROF_INTERVAL: interval is 'soon': Expected `float`"),
        ("MEMPROF_ENABLED", "maybe", "Expected `bool`"),
        ("MEMPROF_MAX_SNAPSHOTS", "3", "Expected `int` >= 10"),
        ("MEMPROF_LARGEST", "1.5", "Expected `int`"),
        ("MEMPROF_INTERVAL", "1e300", "<= 1000000"),
        ("MEMPROF_INTERVAL", "1e10", "<= 1000000"),
        ("MEMPROF_INTERVAL", "nan", "Expected `float` >= 0.01"),
        ("MEMPROF_INTERVAL", "-1", "Expected `float` >= 0.01"),
        ("MEMPROF_LARGEST", "9" * 5000, "out of range"),
    ],
)
def test_wrong_variables(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as e:
        configured()
    assert says in str(e.value)


def test_a_working_folder_that_is_gone(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = empty_folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert configured().file is None


def test_folders_and_projects_that_are_not_ours(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a folder that may not be looked into, and a project file that is none
    (empty_folder.parent / "memprof.toml").write_text("[memprof]\nlargest = 1\n")
    (empty_folder / "pyproject.toml").write_text("[project\nname = 'x'\n")
    looks = Path.is_file

    def refused(path: Path) -> bool:
        if path == empty_folder / "memprof.toml":
            raise PermissionError(13, "Permission denied", str(path))
        return looks(path)

    monkeypatch.setattr(Path, "is_file", refused)
    # THEN the search goes on above it
    assert configured().settings.largest == 1
    monkeypatch.undo()
    monkeypatch.chdir(empty_folder)
    assert configured().settings.largest == 1
    # AND a project file that speaks of us is named
    (empty_folder / "pyproject.toml").write_text("[tool.memprof]\n[\n")
    with pytest.raises(SettingsError, match=r"pyproject\.toml: not TOML"):
        configured()


@pytest.mark.parametrize("text", ["0", "false", "False", " 0 "])
def test_false_in_variables(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MEMPROF_ENABLED", text)
    assert configured().settings.enabled is False


@pytest.mark.parametrize("value", ["", 'a"b\\c', "é\n\t\x01", "😀", True, False, 3, 2.5])
def test_values_are_toml(value: Any) -> None:
    import sys

    if sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    import tomllib

    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


def test_show(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty_folder / "memprof.toml").write_text("[memprof]\nlargest = 3\n")
    monkeypatch.setenv("MEMPROF_INTERVAL", "1")
    output = invoke("config", "show").output
    assert output.splitlines()[0] == f"# file: {empty_folder / 'memprof.toml'}"
    assert "interval = 1.0  # MEMPROF_INTERVAL" in output
    assert f"largest = 3  # {empty_folder / 'memprof.toml'}" in output
    assert 'output_dir = "."  # default' in output
    found = checked("config", invoke("config", "show", "--json").output)
    assert found["settings"]["largest"] == 3
    # What is shown can be put into a file.
    (empty_folder / "memprof.toml").write_text("[memprof]\n" + output)
    assert configured().settings.interval == 1.0


def test_run_says_what_is_wrong_before_it_runs(empty_folder: Path) -> None:
    for words, says in (
        ((), "Missing a script"),
        (("--interval", "0", "x.py"), "Expected `float` >= 0.01"),
        (("--output-dir", "nowhere", "x.py"), "the folder must exist"),
    ):
        assert says in invoke("run", *words, status=2).output


def test_every_setting_is_documented_and_has_a_flag() -> None:
    text = (Path(__file__).parents[4] / "docs" / "tracker.md").read_text()
    help_text = invoke("run", "--help").output
    for field in dataclasses.fields(TrackerSettings):
        default = toml_value(field.default)
        assert f"| `{field.name}` | {default} |" in text.replace('`"."`', '"."')
        if field.name != "enabled":
            assert f"--{field.name.replace('_', '-')}" in help_text

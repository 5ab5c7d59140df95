"""What nobody should hand to a tracker: no hang, nothing raised. ``fuzz/tracker.py`` looks for
more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz.hostile_tracker import TOML, VARIABLES
from fuzz.tracker import try_settings

from memprof.profiler.tracker.settings import SettingsError, configured


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("MEMPROF_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("name", TOML)
def test_a_hostile_file_of_settings(name: str) -> None:
    ended = try_settings(list(TOML).index(name))
    fine = {
        *("arrays as deep as they are read", "many long dotted keys", "an array of tables"),
        *("lone line breaks", "empty"),
    }
    assert ended == "SettingsError" or name in fine


@pytest.mark.parametrize("variable", VARIABLES)
def test_a_hostile_variable(variable: str) -> None:
    ended = try_settings(len(TOML) + list(VARIABLES).index(variable))
    assert ended == "SettingsError" or variable == "MEMPROF_OUTPUT_DIR"


def test_what_is_said_of_a_file_is_fit_for_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in TOML.values():
        (tmp_path / "memprof.toml").write_bytes(text.encode() if isinstance(text, str) else text)
        try:
            configured()
        except SettingsError as e:
            said = str(e)
        else:
            continue
        assert said.isprintable(), said

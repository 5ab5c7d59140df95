"""What a process of its own finds of the program that asks for an estimate."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memprof.estimates import _search_path


def test_only_what_is_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = str(tmp_path / "venv")
    beside = venv + "-project"  # Begins with the same letters.
    monkeypatch.setattr(sys, "prefix", venv)
    monkeypatch.setattr(sys, "base_prefix", venv)
    monkeypatch.setattr(sys, "path", [beside, venv, os.path.join(venv, "lib", "python3.11")])
    assert _search_path() == beside

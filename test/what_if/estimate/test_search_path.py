"""What a process of its own finds of the program that asks for an estimate."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from memprof.what_if.estimates import _search_path


def test_only_what_is_installed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a Python whose prefix is /usr, and programs under it, as in a container
    usr = str(tmp_path / "usr")
    library = os.path.join(usr, "lib", "python3.11")
    monkeypatch.setattr(sys, "prefix", usr)
    monkeypatch.setattr(sys, "base_prefix", usr)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": library, "platstdlib": library})
    ours = [os.path.join(usr, *parts) for parts in (("src", "app"), ("src", "app.zip"))]
    ours += [library + "-project", str(tmp_path)]
    installed = [
        library,
        os.path.join(library, "lib-dynload"),
        os.path.join(usr, "lib", "python311.zip"),
        os.path.join(library, "site-packages"),
        os.path.join(usr, "lib", "python3", "dist-packages"),
        os.path.join(usr, "local", "lib", "python3.11", "dist-packages", "editable"),
    ]
    monkeypatch.setattr(sys, "path", [*ours, *installed])
    assert _search_path() == os.pathsep.join(ours)


def test_this_environment_has_its_own_library() -> None:
    found = _search_path().split(os.pathsep)
    assert not {p for p in found if os.path.isfile(os.path.join(p, "json", "__init__.py"))}
    assert not {p for p in found if os.path.isdir(os.path.join(p, "torch"))}

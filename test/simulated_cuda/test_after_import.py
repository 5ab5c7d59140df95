"""Doing something once somebody imports a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from memprof.simulated_cuda.after_import import after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "imported_later"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import inner\nvalue = inner.value + 1\n")
    (folder / "inner.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return "imported_later"


def test_runs_once_when_the_module_is_whole(package: str) -> None:
    seen: list[tuple[str, int]] = []

    def note(module: ModuleType) -> None:
        seen.append((module.__name__, module.value))

    after_import(package, note)
    after_import(f"{package}.inner", note)
    assert not seen
    # Looking whether it is installed, twice, is no import.
    for _ in range(2):
        assert importlib.util.find_spec(package) is not None
    assert not seen
    importlib.import_module(package)
    assert seen == [(f"{package}.inner", 1), (package, 2)]
    after_import(package, note)
    assert len(seen) == 3
    for name in [n for n in sys.modules if n.startswith(package)]:
        del sys.modules[name]

"""What an installation contains."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_folder_of_sources_is_a_package() -> None:
    # A folder missing from the list works from a clone and is missing from a wheel.
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with tomllib, which Python 3.10 does not have")
    import tomllib

    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]
    found = set()
    for package, folder in setuptools["package-dir"].items():
        for init in (ROOT / folder).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join([package, *below]))
    assert set(setuptools["packages"]) == found


def test_backend_is_registered_without_importing_memprof() -> None:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="memprof")
    assert {p.value for p in points} == {"memprof.compile_backend.backend:memprof"}

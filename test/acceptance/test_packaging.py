"""What an installation contains."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parents[2]


def test_every_folder_of_sources_is_a_package() -> None:
    # A folder without __init__.py works from a clone and is missing from a wheel.
    found = set(find_packages(str(ROOT), include=["memprof*"]))
    wanted = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for system in (ROOT / "memprof").iterdir()
        if system.is_dir()
        for path in [*(ROOT / "memprof").glob("*.py"), *system.rglob("*.py")]
    }
    assert found == wanted
    assert {"memprof.profiler.views.report.html", "memprof.cudagraph_trees.device"} <= found


def test_backend_is_registered_without_importing_memprof() -> None:
    points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="memprof")
    assert {p.value for p in points} == {"memprof.compile_backend.backend:memprof"}

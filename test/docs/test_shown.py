"""Contents of pages beside their own blocks: the notebook runs, the gallery is of its scripts."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    "MEMPROF_TEST_NOTEBOOK" not in os.environ, reason="compiles for half a minute: make docs"
)
def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads((ROOT / "examples" / "notebook" / "memprof.ipynb").read_text())["cells"]
    script = tmp_path / "notebook.py"
    script.write_text(
        "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Live at the peak, by category" in done.stdout
    assert "gelu" in done.stdout
    assert (tmp_path / "after.html").stat().st_size > 50_000


def test_the_gallery_is_of_its_scripts() -> None:
    place = ROOT / "examples" / "gallery" / "make.py"
    spec = importlib.util.spec_from_file_location("gallery", place)
    assert spec is not None
    assert spec.loader is not None
    gallery = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gallery)
    page = (ROOT / "docs" / "gallery.md").read_text()
    scripts = sorted(place.parent.glob("[0-9]*.py"))
    assert len(scripts) == 10
    for script in scripts:
        found = gallery.finding(script)
        for part in ("title", "text", "command", "code"):
            assert found[part].strip() in page, f"{script.name}: make gallery"

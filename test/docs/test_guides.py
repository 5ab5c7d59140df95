"""Every guide's script, run as it stands on its page, with the framework itself where that is
installed (``pip install`` it, or put it on PYTHONPATH)."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memprof

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "guides"
PAGES = ROOT / "docs" / "guides"

# Page, script, what it imports, and the steps that its record has.
GUIDES: list[tuple[str, str, tuple[str, ...], int]] = [
    ("transformers.md", "trainer.py", ("transformers", "accelerate"), 4),
    ("accelerate.md", "accelerate_loop.py", ("accelerate",), 4),
    ("lightning.md", "lightning_module.py", ("lightning",), 8),
    ("torchtitan.md", "torchtitan_llama.py", ("torchtitan", "triton"), 3),
    ("trl.md", "trl_lora.py", ("trl", "peft"), 3),
    ("diffusers.md", "diffusers_unet.py", ("diffusers",), 4),
]
LINES = 30


ON_CUDA = {"torchtitan.md"}


@pytest.mark.parametrize(
    ("page", "script", "packages", "steps"),
    [
        pytest.param(*guide, marks=[pytest.mark.simgpu] if guide[0] in ON_CUDA else [])
        for guide in GUIDES
    ],
)
def test_a_guide_does_what_it_says(
    page: str, script: str, packages: tuple[str, ...], steps: int, tmp_path: Path
) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # WHEN the script is run
    path = os.pathsep.join([str(ROOT), *sys.path])
    # No value matters, and those of an attention kernel would take minutes.
    environment = {**os.environ, "PYTHONPATH": path, "SIMGPU_VALUES": "0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    # THEN it prints a report, of compiled code, and leaves a profile and a record of its steps
    first = "What was reserved" if page in ON_CUDA else "Live"
    assert f"{first} at the peak" in done.stdout
    (file,) = tmp_path.glob("run*.memprof")
    profile = memprof.load(file).profile()
    assert profile.complete
    assert any(graph.programs for graph in profile.graphs)
    (record,) = tmp_path.glob("steps*.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, steps + 1)]
    device = "cuda:0" if page in ON_CUDA else "cpu"
    assert all(sum(line["peak"][device].values()) > 0 for line in lines[1:])


@pytest.mark.parametrize("page", sorted({page for page, *_ in GUIDES}))
def test_a_page_shows_its_script(page: str) -> None:
    script = next(script for name, script, *_ in GUIDES if name == page)
    text = (SCRIPTS / script).read_text()
    shown = text.split('"""\n\n', 1)[1]
    assert f"```python\n{shown}```\n" in (PAGES / page).read_text(), "copy the script to the page"
    assert len(text.splitlines()) <= LINES


def test_each_page_is_listed_and_each_script_run() -> None:
    listed = re.findall(r"\]\(([\w-]+\.md)\)", (PAGES / "README.md").read_text())
    assert sorted(listed) == sorted(p.name for p in PAGES.glob("*.md") if p.name != "README.md")
    assert {script for _, script, *_ in GUIDES} == {p.name for p in SCRIPTS.glob("*.py")}

"""The proof for a GPU: its page, its runner, its wheels. In all: `make prove-gpu-rehearsal`."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from proof import page  # noqa: E402
from proof.kit import requirements  # noqa: E402
from proof.run import run  # noqa: E402

MACHINE = {
    "gpu": "NVIDIA Some", "date": "2026-12-01", "gpu_bytes": 80 << 30, "driver": "580.1",
    "cuda": "13.0", "python": "3.12.3", "cores": 16, "versions": {"torch": "2.11.0"},
    "simulated": False,
}  # fmt: skip
ROW = {"tensors": 3, "control_equal": 2, "control_difference": 1e-6}
VALUES = {
    "GPT-2": {
        "ended": "ok",
        "error": "",
        "rows": [
            {"kind": "values", "what": "losses", "equal": 3, "difference": 0.0, **ROW},
            {"kind": "values", "what": "gradients", "equal": 1, "difference": 3e-6, **ROW},
            {"kind": "graphs", "replays": 34, "recordings": 2, "given_up": ["skip: a|b (1)"]},
        ],
    },
    "T5": {
        "ended": "ok",
        "error": "",
        "rows": [{"kind": "values", "what": "losses", "equal": 2, "difference": 5e-3, **ROW}],
    },
    "Mamba": {"ended": "failed", "error": "status 1: no\nmore", "rows": []},
}
SECTION = """\
## NVIDIA Some, 2026-12-01

81,920 MiB, driver 580.1, CUDA 13.0, Python 3.12.3, 16 cores; torch 2.11.0.

### values

About values.

| case that did not end well | ended | why |
| --- | --- | --- |
| Mamba | failed | status 1: no / more |

| case | values | equal | difference | Inductor again: equal | its difference |
| --- | --- | --- | --- | --- | --- |
| GPT-2 | losses | 3 of 3 | 0.0e+00 | 2 of 3 | 1.0e-06 |
| GPT-2 | gradients | 1 of 3 | 3.0e-06 | 2 of 3 | 1.0e-06 |
| T5 | losses | 2 of 3 | 5.0e-03 | 2 of 3 | 1.0e-06 |

| case | replays | recordings | no graph |
| --- | --- | --- | --- |
| GPT-2 | 34 | 2 | skip: a / b (1) |

### scripts

About scripts.

{}
| --- | --- | --- | --- | --- | --- | --- |
| eager | 103.0 | 100.0 | +3.00 |  | 90.0 |  |
""".format(
    "| script | reserved: simulated, MiB | measured | off, % "
    "| allocated: simulated, MiB | measured, MiB | off |"
)


def test_the_page_has_every_row_of_the_files(tmp_path: Path) -> None:
    # GIVEN two parts of one machine: a model right, one apart from Inductor, one that failed
    folder = tmp_path / "nvidia-some-2026-12-01"
    folder.mkdir()
    peaks = {
        "kind": "peaks", "reserved": 100 << 20, "allocated": 90 << 20, "reserved_off": 3.0,
        "simulated_reserved": 103 << 20, "simulated_allocated": None, "allocated_off": None,
    }  # fmt: skip
    scripts = {"eager": {"ended": "ok", "error": "", "rows": [peaks]}}
    for part, cases in (("scripts", scripts), ("values", VALUES)):
        content = {"part": part, "about": f"About {part}.", "simulated": False, "cases": cases}
        (folder / f"{part}.json").write_text(json.dumps({**content, "machine": MACHINE}))
    readme = tmp_path / "README.md"
    readme.write_text(f"Before.\n{page.MARKS[0]}\nold\n{page.MARKS[1]}\nAfter.\n")
    # WHEN the command writes page and sentence
    page.main(tmp_path, tmp_path / "page.md", readme)
    # THEN they are of those files alone
    text = (tmp_path / "page.md").read_text()
    assert text.partition("## NVIDIA")[2] == SECTION.partition("## NVIDIA")[2]
    assert page.NONE not in text
    sentence = " ".join(readme.read_text().split())
    assert "measured on NVIDIA Some (2026-12-01): of 3 runs of models 1 have" in sentence
    assert sentence.startswith("Before.")
    assert sentence.endswith("After.")


def test_the_tree_has_what_the_command_makes() -> None:
    machines = page.read(page.RESULTS)
    assert page.PAGE.read_text() == page.page(machines)
    sentence = "\n".join([page.MARKS[0], page.sentence(machines), page.MARKS[1]])
    assert sentence in page.README.read_text()


FAKE = """
import os, signal
from proof.common import Part

def good(rows):
    rows.add(kind="row", n=1)
    rows.add(kind="row", n=2)

def dies(rows):
    rows.add(kind="row", n=1)
    os.abort()

def lacks(rows):
    import a_module_that_nobody_has

CASES = {
    "fine": {"good": good, "more": good},
    "broken": {"dies": dies, "lacks": lacks, "good": good},
    "hangs": {"hangs": lambda rows: signal.pause()},
}
PART = Part(__name__, __name__, "", CASES[__name__], limit_s=1 if __name__ == "hangs" else 100)
"""


def test_a_part_that_fails_leaves_the_files_of_others_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN parts of which cases die, hang and lack something; nothing in them needs torch
    names = ("broken", "hangs", "fine")
    for name in names:
        (tmp_path / f"{name}.py").write_text(FAKE)
    (tmp_path / "torch.py").write_text("class cuda: Stream = object\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'benchmarks'}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    parts = [importlib.import_module(name).PART for name in names]
    # WHEN all run
    assert not run(parts, tmp_path / "out", MACHINE, seconds=600)
    # THEN each file has what its cases knew, and how they ended
    broken, hangs, fine = (
        json.loads((tmp_path / "out" / f"{name}.json").read_text())["cases"] for name in names
    )
    for case in (*fine.values(), *broken.values()):
        assert all(0 <= row.pop("at_s") < 100 for row in case["rows"])
    two = [{"kind": "row", "n": 1}, {"kind": "row", "n": 2}]
    assert [(c["ended"], c["rows"]) for c in fine.values()] == [("ok", two)] * 2
    assert [c["ended"] for c in broken.values()] == ["failed", "skipped", "ok"]
    assert broken["dies"]["rows"] == two[:1]
    assert "a_module_that_nobody_has" in broken["lacks"]["error"]
    assert hangs["hangs"]["error"] == "took more than 1 s"
    assert "in <lambda>" in hangs["hangs"]["output"]
    # AND what did not fail is said to be fine, what no time was left for is not
    assert run(parts[2:], tmp_path / "fine", MACHINE, seconds=600)
    assert not run(parts[2:], tmp_path / "late", MACHINE, seconds=0)
    late = json.loads((tmp_path / "late" / "fine.json").read_text())["cases"]["more"]
    assert late == {"ended": "not begun", "error": "the time was up", "rows": []}


def test_wheels_are_those_of_the_metadata() -> None:
    metadata = textwrap.dedent("""\
        Metadata-Version: 2.4
        Name: memprof
        Requires-Dist: torch>=2.11
        Requires-Dist: msgspec>=0.19
        Requires-Dist: tomli>=2; python_version < "3.11"
        Requires-Dist: rich
        Requires-Dist: pytest>=8.2; extra == "proof"
        Requires-Dist: ruff; extra == "dev"
    """)
    assert requirements(metadata) == ["msgspec>=0.19", "rich", "pytest>=8.2"]
    assert requirements(metadata, "3.10")[1] == "tomli>=2"

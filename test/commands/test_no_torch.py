"""The profiler and the command line work without torch, and do not import it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from profile_builder import training

from memprof.profiler.file.profile_file import write_profile

# Importing torch fails in the child, as if it were not installed.
BLOCK = "import sys; sys.modules['torch'] = None\n"


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )


ALL = """
import json
from memprof.cli import main
for command in json.loads(sys.argv[1]):
    main(command, prog_name="memprof", standalone_mode=False)
"""


def test_report_without_torch(tmp_path: Path) -> None:
    path, out = str(tmp_path / "p.memprof"), str(tmp_path / "out")
    write_profile(training(), path)
    commands = [
        ["report", "--full", path],
        ["report", "--section", "ledger", path],
        ["diff", path, path],
        ["report", path, "-o"],
        *(["export", path, "-f", f, "-o", out] for f in ("perfetto", "memory-viz", "json")),
        ["export", path, "-f", "memprof", "-o", str(tmp_path / "all.memprof")],
    ]
    done = run(BLOCK + ALL, json.dumps(commands))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("0/0 forward") >= 2


def test_reading_a_profile_does_not_import_torch(tmp_path: Path) -> None:
    path = tmp_path / "p.memprof"
    write_profile(training(), path)
    done = run(
        "import sys\nfrom memprof.cli import main\n"
        "main(['report', sys.argv[1]], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)",
        str(path),
    )
    assert done.returncode == 0


def test_doctor_without_torch_says_so() -> None:
    done = run(BLOCK + "from memprof.cli import main; main(['doctor'])")
    assert done.returncode == 1
    assert done.stderr == ""
    assert re.search(r"^fail +torch +not installed -> pip install torch$", done.stdout, re.M)
    assert done.stdout.count("No module named") == 0
    said = " ".join(done.stdout.split())
    works = "Files can be read: memprof report, diff and export need no torch."
    fails = "memprof does not work here as a backend: see `fail`."
    assert said.endswith(f"{fails} {works} Next: pip install torch (torch)")

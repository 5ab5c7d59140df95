"""The profiler and the command line work without torch, and do not import it."""

from __future__ import annotations

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


def test_profiler_imports_without_torch() -> None:
    done = run(
        BLOCK
        + "import memprof, memprof.cli, memprof.profiler.model\n"
        + "import memprof.profiler.file.profile_file\n"
        + "import memprof.profiler.live.timeline, memprof.profiler.live.attribution\n"
        + "import memprof.profiler.views.report\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_report_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "p.memprof"
    write_profile(training(), path)
    main = "from memprof.cli import main; main(prog_name='memprof')"
    for command in (("report", "--full"), ("report", "--section", "ledger")):
        done = run(BLOCK + main, *command, str(path))
        assert (done.returncode, done.stderr) == (0, "")
        assert "0/0 forward" in done.stdout
    merged = str(tmp_path / "all.memprof")
    for command in (
        ["diff", str(path), str(path)],
        ["export", str(path), "-f", "memprof", "-o", merged],
    ):
        done = run(BLOCK + main, *command)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_report_page_without_torch(tmp_path: Path) -> None:
    write_profile(training(), tmp_path / "p.memprof")
    main = "from memprof.cli import main; main(prog_name='memprof')"
    page = tmp_path / "p.html"
    done = run(BLOCK + main, "report", str(tmp_path / "p.memprof"), "-o", str(page))
    assert (done.returncode, done.stderr) == (0, "")
    assert page.read_text().startswith("<!doctype html>")


def test_pages_and_exports_without_torch(tmp_path: Path) -> None:
    write_profile(training(), tmp_path / "p.memprof")
    code = (
        BLOCK + "import sys\nfrom memprof.cli import main\n"
        "file, out = sys.argv[1:]\n"
        "for name in ('perfetto', 'memory-viz', 'json'):\n"
        "    main(['export', file, '-f', name, '-o', out], standalone_mode=False)\n"
    )
    done = run(code, str(tmp_path / "p.memprof"), str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")


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
    works = "see `fail`. These work: memprof report. Next: pip install torch (torch)"
    assert said.endswith(f"memprof does not work here as a backend: {works}")

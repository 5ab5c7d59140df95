"""memprof doctor: right about this machine, and upright where things are missing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from outputs import checked

from memprof.cli import main
from memprof.commands import doctor
from memprof.commands._torch_compat import accelerators
from memprof.commands.doctor import Diagnosis, ProbeResult, Status, examine, in_words
from memprof.profiler.views.report import Style
from memprof.profiler.views.report.text import render

pytest.importorskip("torch")


def by_name(diagnosis: Diagnosis) -> dict[str, ProbeResult]:
    return {f.name: f for f in diagnosis.found}


@pytest.fixture(scope="module")
def here() -> Diagnosis:
    return examine()


def test_this_machine(here: Diagnosis) -> None:
    import torch

    found = by_name(here)
    assert found["torch"].detail == str(torch.__version__)
    assert found["torch"].status == "ok"
    assert found["Python"].detail.startswith("3.")
    assert found['torch.compile(backend="memprof")'].status == "ok"
    assert ("cuda:0" in found["devices"].detail) == torch.cuda.is_available()
    assert (found["CUDA graphs"].status == "ok") == torch.cuda.is_available()
    cuda = torch.version.cuda is not None and torch.version.cuda.startswith("13")
    assert (found["memprof simulate"].status == "ok") == cuda
    if found["C++ compiler"].status == "ok":
        assert here.works


def test_command(here: Diagnosis) -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert result.exit_code == (0 if here.works else 1)
    assert checked("doctor", result.output)["works"] == here.works
    result = CliRunner().invoke(main, ["doctor"], env={"COLUMNS": "80"})
    assert max(map(len, result.output.splitlines())) <= 80
    assert "This machine" in result.output
    assert result.output.splitlines()[-1] == f"Next: {here.next}"


def test_nothing_of_the_environment_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    before = dict(os.environ)
    examine()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("release", "status", "says"),
    [
        ("2.10.1", "fail", "supported: 2.11 to 2.15"),
        ("2.11.0+cu128", "ok", "2.11.0"),
        ("2.15.0a0+git123", "ok", "2.15.0"),
        ("2.16.0", "warn", "newer than what memprof is tested with"),
        ("3.0.0", "warn", "newer than"),
        ("unknown", "ok", "unknown"),
    ],
)
def test_torch_releases(
    monkeypatch: pytest.MonkeyPatch, release: str, status: Status, says: str
) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", release)
    finding = doctor._probe("torch", doctor._torch)
    assert finding.status == status
    assert says in finding.detail


def compiler(folder: Path, script: str) -> str:
    path = folder / "fake-c++"
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("script", "status", "says"),
    [
        ("", "ok", "compiles (C++17, Python.h, OpenMP)"),
        (
            "if '-fopenmp' in sys.argv: sys.exit('error: unsupported option -fopenmp')",
            "fail",
            "does not compile: error: unsupported option -fopenmp",
        ),
        (
            "text = open(next(a for a in sys.argv if a.endswith('.cpp'))).read()\n"
            "if 'Python.h' in text: sys.exit('fatal error: Python.h: No such file')",
            "fail",
            "does not compile: fatal error: Python.h: No such file",
        ),
        (
            "sys.exit('fatal error: cannot execute cc1plus')",
            "fail",
            "does not compile: fatal error: cannot execute cc1plus",
        ),
        ("sys.exit(3)", "fail", "does not compile: exit status 3"),
    ],
)
def test_compilers_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, status: Status, says: str
) -> None:
    fake = compiler(tmp_path, script)
    monkeypatch.setattr("memprof.commands._torch_compat.find_cpp_compiler", lambda: fake)
    finding = doctor._probe("C++ compiler", doctor._compiler)
    assert finding.status == status
    assert says in finding.detail


def test_compiler_that_hangs_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COMPILE_TIMEOUT_S", 0.5)
    slow = compiler(tmp_path, "import time; time.sleep(30)")
    for path, says in ((slow, "timed out"), (str(tmp_path / "nowhere"), "No such file")):
        monkeypatch.setattr(
            "memprof.commands._torch_compat.find_cpp_compiler", lambda path=path: path
        )
        finding = doctor._probe("C++ compiler", doctor._compiler)
        assert finding.status == "fail"
        assert says in finding.detail


def test_probes_that_raise_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("No working\nC++ compiler found")

    for name in (
        "find_cpp_compiler",
        "backend_names",
        "accelerators",
        "why_no_cuda_graphs",
    ):
        monkeypatch.setattr(f"memprof.commands._torch_compat.{name}", broken)
    monkeypatch.setattr(doctor, "entry_points", broken)
    diagnosis = examine()
    found = by_name(diagnosis)
    assert found["C++ compiler"].detail == "RuntimeError: No working C++ compiler found"
    assert not diagnosis.works
    text = " ".join(render(in_words(diagnosis)).split())
    assert "memprof does not work here as a backend: see `fail`. Files can be read: " in text


def test_the_next_command(here: Diagnosis) -> None:
    found = by_name(here)

    def after(works: bool, **statuses: Status) -> str:
        names = {
            "simulate": "memprof simulate",
            "gpu": "Inductor code for GPU",
            "torch": "torch",
            "compiler": "C++ compiler",
        }
        changed = {
            names[key]: ProbeResult(names[key], status, "", f"mend {key}")
            for key, status in statuses.items()
        }
        return doctor._next(works, {**found, **changed})

    simulated = after(True, simulate="ok", gpu="warn")
    assert simulated == "memprof simulate --gpu h100-80gb -- python train.py"
    assert after(True, simulate="ok", gpu="ok") == "memprof run train.py"
    assert after(True, simulate="warn", gpu="warn") == "memprof run train.py"
    failed = after(False, simulate="warn", torch="fail", compiler="fail")
    assert failed == "mend torch (torch)"


def test_the_other_memprof(tmp_path: Path) -> None:
    """PyPI's memprof installs into the same folder, and is found before and after ours."""
    import memprof

    folder = tmp_path / "memprof"
    folder.mkdir()
    for path in Path(memprof.__file__).parent.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    (folder / "mp_utils.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )

    assert "UserWarning: another program, PyPI's memprof" in python("import memprof").stderr
    (folder / "__init__.py").unlink()
    (folder / "__init__.py").write_text("__version__ = '0.3.6'\n")
    look = "from memprof.commands import doctor; print(doctor._probe('memprof', doctor._memprof))"
    assert "pip install --force-reinstall --no-deps torch-memprof" in python(look).stdout


def test_entry_point_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "entry_points", lambda **_: [])
    found = by_name(examine())['torch.compile(backend="memprof")']
    assert (found.status, found.detail) == ("fail", "torch would not find memprof: no entry point")


def test_look() -> None:
    diagnosis = Diagnosis(
        False,
        [
            ProbeResult("torch", "fail", "not installed", "pip install torch"),
            ProbeResult("CUDA graphs", "warn", "no: " + "word " * 30),
        ],
        "pip install torch (torch)",
    )
    text = render(in_words(diagnosis), Style(width=80))
    assert text.splitlines()[:4] == [
        "This machine",
        "status  what         found",
        "─" * 80,
        "fail    torch        not installed -> pip install torch",
    ]
    assert text.splitlines()[-1] == "Next: pip install torch (torch)"
    assert max(map(len, text.splitlines())) <= 80


def test_a_device_of_which_torch_has_no_properties_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ``torch.mps`` has none."""
    import torch

    kind = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: kind)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: object())
    assert accelerators() == ["mps"]

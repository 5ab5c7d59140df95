"""The plugin as a project's tests have it, on the simulated device."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytestmark = pytest.mark.simgpu

MODEL = """
import torch

class Block(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.up = torch.nn.Linear(64, hidden)
        self.down = torch.nn.Linear(hidden, 64)
    def forward(self, x):
        return self.down(self.up(x).relu())
"""

TESTS = """
import pytest
import torch
from model import Block

HIDDEN = {hidden}

@pytest.fixture(autouse=True)
def on_the_device():
    torch.empty(1, device="cuda")

@pytest.mark.limit_device_memory("{limit}", gpu="t4", growth="0 %")
@pytest.mark.parametrize("layers", [2])
def test_step(layers):
    model = torch.nn.Sequential(*[Block(HIDDEN) for _ in range(layers)]).cuda()
    assert torch.cuda.get_device_name() == "Tesla T4"
    model(torch.empty(4096, 64, device="cuda")).sum().backward()

@pytest.mark.limit_device_memory()
def test_inside():
    before = torch.cuda.memory_allocated()
    made = torch.empty(8 << 20, dtype=torch.int8, device="cuda")
    assert torch.cuda.max_memory_allocated() - before == made.nbytes

@pytest.mark.limit_device_memory()
def test_wrong():
    assert torch.cuda.is_available()
    raise ValueError("of its own")

@pytest.mark.limit_device_memory()
def test_skips():
    torch.empty(1, device="cuda")
    pytest.skip("for a reason")

@pytest.mark.limit_device_memory(gpu="t4")
def test_too_much():
    kept = [torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(32)]
"""


def run(folder: Path, *options: str) -> str:
    # The simulated device's libraries stay: test modules import torch here, too.
    environment = {
        k: v for k, v in os.environ.items() if k not in ("SIMGPU_VALUES", "PYTEST_ADDOPTS")
    }
    # An installed memprof brings it; here it may be that only the sources are there.
    installed = entry_points(group="pytest11", name="memprof")
    plugin = [] if installed else ["-p", "memprof.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *plugin, *options, "test_model.py"],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder)])},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def project(folder: Path, hidden: int, limit: str = "1 GiB") -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "model.py").write_text(MODEL)
    (folder / "test_model.py").write_text(TESTS.format(hidden=hidden, limit=limit))


def test_a_project(tmp_path: Path) -> None:
    project(tmp_path, 1024)
    output = run(tmp_path, "--memprof-update")
    assert "PASSED test_model.py::test_step[2]" in output, output
    assert "PASSED test_model.py::test_inside" in output
    assert "SKIPPED" in output
    assert "for a reason" in output
    assert "FAILED test_model.py::test_wrong" in output
    assert "ValueError: of its own" in output
    assert "test_too_much ran out of memory on Tesla T4" in output
    assert "1.00 GiB at test_model.py" in output
    project(tmp_path, 1055)  # 3 % more
    grown = run(tmp_path, "-k", "test_step")
    assert "more than its baseline" in grown, grown
    assert "Sequential > Block" in grown


OPTIONS = """
import pytest

def pytest_addoption(parser):
    parser.addoption("--runslow", action="store_true")
    parser.addoption("--width", type=int, default=1)

def pytest_configure(config):
    config.width = config.getoption("--width")

def pytest_collection_modifyitems(config, items):
    if not config.getoption("--runslow"):
        for item in items:
            item.add_marker(pytest.mark.skip(reason="slow"))
"""

OF_A_WIDTH = """
import pytest
import torch

@pytest.mark.limit_device_memory("3 MiB")
def test_width(request):
    torch.empty(1 + (request.config.width << 22), dtype=torch.int8, device="cuda")
"""


@pytest.mark.parametrize(("width", "said"), [(1, "1 failed"), (0, "1 passed")])
def test_options_of_the_project_hold_on_the_device(tmp_path: Path, width: int, said: str) -> None:
    (tmp_path / "conftest.py").write_text(OPTIONS)
    (tmp_path / "test_model.py").write_text(OF_A_WIDTH)
    output = run(tmp_path, "--runslow", f"--width={width}")
    assert said in output, output
    assert ("more than its limit of 3.00 MiB" in output) == (width == 1)

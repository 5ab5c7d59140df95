"""Whole programs on the simulated device, each in a process of its own; they check themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.simgpu

HERE = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("program", "devices"),
    [
        ("e_faults", 2),
        pytest.param("i_kernels", 1, marks=pytest.mark.slow),
    ],
)
def test_program_ends_well(program: str, devices: int, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SIMGPU_DEVICES": str(devices),
        "SIMGPU_VALUES": "0",  # Those that want values turn them on themselves.
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    ran = subprocess.run(
        [sys.executable, str(HERE / f"{program}.py")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "not simulated" not in ran.stderr

"""What reports find about graph trees, tried on the simulated device as a user does it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import memprof

pytestmark = pytest.mark.simgpu

N = 4 << 20
"""Elements of the tensors that findings are about, of four bytes each."""

# Kernels of which the configuration is not measured: that takes memory, once a cache.
HEAD = f"""
import torch

N = {N}

def compiled(function, dynamic=False, **options):
    options["triton.autotune_pointwise"] = False
    return torch.compile(function, backend="memprof", dynamic=dynamic, options=options)

def steps(step, count=8):
    with torch.no_grad():
        for i in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            step(i)
"""


def advise(tmp_path: Path, program: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first try of a program's findings, and all that was printed."""
    script, profile = tmp_path / "script.py", tmp_path / "run.memprof"
    script.write_text(HEAD + program)
    torch._dynamo.reset()
    with memprof.profile(str(profile)):
        exec(compile(script.read_text(), str(script), "exec"), {})
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SIMGPU_")}
    environment.pop("LD_PRELOAD", None)
    command = [sys.executable, "-m", "memprof", "advise", "-q", "--json", str(profile), "--try"]
    done = subprocess.run(
        [*command, "--", "python", str(script)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["results"][0], found

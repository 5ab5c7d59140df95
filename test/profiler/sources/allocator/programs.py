"""Programs that are a process each: the allocator's figures are those of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forked import run_forked


def run(program: str, *arguments: str, **environment: str) -> str:
    """Standard error of a program that must succeed, and has no file."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "exec(open(0).read())", *arguments],
        input=program,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def script(path: Path, program: str, *arguments: str, **environment: str) -> str:
    """The same for one whose source lines are asked for: it is written to ``path``, and
    ``environment`` is what is read after torch was imported."""
    path.write_text(program)
    return run_forked(path, *arguments, **environment)

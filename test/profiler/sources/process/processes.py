"""Programs with a tracker, as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import TrackerRecord

HEAD = """\
import os, signal, sys, threading, time
import torch
import memprof
torch.set_num_threads(1)
"""


def start(program: str, folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Python with ``program`` in ``folder``."""
    path = folder / "program.py"
    path.write_text(HEAD + textwrap.dedent(program))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MEMPROF_")}
    return subprocess.Popen(
        [sys.executable, *(arguments or (str(path),))],
        cwd=folder,
        env={**environment, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same, to its end."""
    process = start(program, folder, **variables)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    """Until the process prints ``line``."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"it ended without {line!r}: {process.communicate()[1]}")


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    """Send a signal; the exit status and what stands in stderr."""
    process.send_signal(number)
    _, err = process.communicate()
    return process.returncode, err


def files(folder: Path) -> list[str]:
    """Names of the tracker's files in ``folder``."""
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("memory_profile_"))


def record(folder: Path, index: int = 0) -> TrackerRecord:
    """The record in the only final file (or the one at ``index``)."""
    names = [n for n in files(folder) if n.endswith(".memprof")]
    assert names, files(folder)
    found = read_profile(folder / names[index]).tracker
    assert found is not None
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Until ``condition()`` is true."""
    while not condition():
        time.sleep(0.05)

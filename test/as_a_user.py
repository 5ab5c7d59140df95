"""Commands of memprof in a process of their own, without this one's simulated device: they make
theirs."""

from __future__ import annotations

import os
import subprocess
import sys


def memprof(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``memprof`` with these arguments and ``given`` through a pipe as its standard input,
    whatever its exit status will be."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SIMGPU_")}
    environment.pop("LD_PRELOAD", None)
    return subprocess.run(
        [sys.executable, "-m", "memprof", *arguments],
        capture_output=True,
        input=given,
        text=True,
        env=environment,
        check=False,
    )

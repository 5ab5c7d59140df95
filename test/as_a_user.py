"""Commands of memprof in a process of their own, without this one's simulated device: they make
theirs."""

from __future__ import annotations

import os
import subprocess
import sys


def memprof(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``memprof`` with these arguments and an empty pipe as its standard input; it must end
    with this status."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SIMGPU_")}
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run(
        [sys.executable, "-m", "memprof", *arguments],
        capture_output=True,
        input="",
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done

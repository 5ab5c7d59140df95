"""The process that a script runs in, from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

WAITING = """
import os
import sys
from memprof.simulate import parent
from memprof.simulated_cuda.gpus import find_gpu
script = "import os, time; os.write(2, b'%d ' % os.getpid()); time.sleep(300)"
parent._wait([sys.executable, "-c", script], os.environ, parent.Settings(gpu=find_gpu()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_script_ends_with_its_parent(number: signal.Signals) -> None:
    """Also where its terminal is closed, of which it hears nothing itself."""
    words = [sys.executable, "-c", WAITING]
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stderr is not None
        script = b""
        while not script.endswith(b" "):
            script += parent.stderr.read(1)
        parent.send_signal(number)
        assert parent.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(script), 0)

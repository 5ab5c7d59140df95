"""What a script that is run several times reads from standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from memprof.what_if.simulate.parent import StandardInput

READ = "import sys; print(len(sys.stdin.buffer.read()))"
LARGE = 300_000
"""Bytes, several times what a pipe holds."""


def lengths_read(given: StandardInput, program: str = READ, runs: int = 3) -> list[int]:
    """What a program prints in run after run."""
    found = []
    for _ in range(runs):
        with given.for_one_run() as descriptor:
            words = [sys.executable, "-c", program]
            found.append(int(subprocess.check_output(words, stdin=descriptor)))
    return found


def test_each_run_reads_all_that_comes_through_a_pipe() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", f"print('x' * {LARGE}, end='')"], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    with writer:
        given = StandardInput(writer.stdout.fileno())
        # The first reads a line's worth alone, the others everything.
        few = "import sys; print(len(sys.stdin.buffer.read(10)))"
        assert lengths_read(given, few, runs=1) == [10]
        assert lengths_read(given, runs=2) == [LARGE, LARGE]


def test_a_pipe_that_nobody_closes_holds_nobody_up() -> None:
    reading, writing = os.pipe()
    try:
        # Held up, it would not end.
        assert lengths_read(StandardInput(reading), "print(0)", runs=2) == [0, 0]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_file_is_read_from_where_it_stood(tmp_path: Path) -> None:
    """In a process of its own, whose standard input it is."""
    path = tmp_path / "input"
    path.write_bytes(b"0123456789")
    program = f"""
import subprocess, sys
from memprof.what_if.simulate.parent import StandardInput
given = StandardInput()
for _ in range(2):
    with given.for_one_run() as descriptor:
        subprocess.run([sys.executable, "-c", {READ!r}], stdin=descriptor, check=True)
"""
    with path.open("rb", buffering=0) as f:
        f.seek(4)
        out = subprocess.check_output([sys.executable, "-c", program], stdin=f)
    assert out.split() == [b"6", b"6"]

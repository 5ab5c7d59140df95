"""The tests that are marked for a GPU, as ``make test-gpu`` runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

from proof.common import Part, Rows
from proof.subjects import ROOT

ENDED = re.compile(r"^\[gw\d+\] .*\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL) (\S+::.+)$")
"""A line of pytest with several workers, as a test ends; its summary names failures once more."""


def run(rows: Rows) -> None:
    """A row a test, as it ends; the end of what was said with the last."""
    found = [p for p in sorted((ROOT / "test").rglob("test_*.py")) if "mark.gpu" in p.read_text()]
    plugins = ("-p", "xdist", "-p", "pytest_timeout", "-p", "memprof.pytest_plugin")
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-m", "gpu and not slow", "-p", "no:cacheprovider"),
        *(*plugins, "-n", "2" if rows.simulated else "4", "--dist", "loadfile", *map(str, found)),
    ]
    ended: Counter[str] = Counter()
    said = []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            if match := ENDED.search(line.rstrip()):
                ended[match[1]] += 1
                passed = "passed" if match[1] == "PASSED" else "not passed"
                rows.add(kind=passed, test=match[2], ended=match[1])
    counts = {"passed": ended["PASSED"], "skipped": ended["SKIPPED"]}
    rows.add(kind="counts", **counts, failed=ended.total() - sum(counts.values()))
    rows.put(said="".join(said)[-8000:])
    if process.returncode:
        raise RuntimeError(f"pytest ended with {process.returncode}: {dict(ended)}")


PART = Part(
    name="gpu_tests",
    module="proof.gpu_tests",
    about="The tests marked gpu, slow ones left out: each with how it ended.",
    cases={"pytest": run},
    values=True,
)

"""What the CPU tests cost, beside what they cost at another commit: ``make bench-suite``.

    python benchmarks/suite_cost.py                        # this checkout, half an hour
    python benchmarks/suite_cost.py --against 82c06e8      # and that commit, after each other
    python benchmarks/suite_cost.py --against 82c06e8 test/acceptance test/tracker
    python benchmarks/suite_cost.py --quick                # one file of tests

Note [What a test costs]
~~~~~~~~~~~~~~~~~~~~~~~~
The tests run in one process, one after the other, from an empty compiler cache, and after each the
process's CPU time, user and system, is noted with that of the children that it has waited for:
compilers, scripts, browsers. CPU time and not wall time, and one process instead of ``make test``'s
several, because other work on the machine then matters least; it still slows caches and memory, so
compare figures of one run only. Processes that a test leaves behind are not counted.

A commit is checked out into a temporary work tree and runs in this environment. Tests are paired by
their folder and function's name: ``since`` is what those cost that the other commit does not have,
and what remains of a folder is the cost of the same coverage.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICK = "test/testing/test_program_text.py"
# Where the sources lay before memprof/ had links to them in git.
SOURCES = ("compile_backend", "compiled_autograd", "cudagraph_trees", "profiler")

PLUGIN = """
import json, os, pytest

def cost():
    t = os.times()
    return t.user + t.system, t.children_user + t.children_system

last = 0.0, 0.0

def note(test):
    global last
    now = cost()
    with open(os.environ["SUITE_COST"], "a") as f:
        print(json.dumps([test, now[0] - last[0], now[1] - last[1]]), file=f)
    last = now

def pytest_collection_finish(session):
    note("start")

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    result = yield
    note(item.nodeid)
    return result

def pytest_unconfigure(config):
    note("end")
"""

Costs = dict[tuple[str, str], tuple[float, float]]
"""Seconds of the process itself and of its children, by folder and test function."""


def measure(checkout: Path, tests: list[str]) -> Costs:
    """Run the tests of a checkout that it has.

    Raises:
        RuntimeError: pytest did not get to the end.
    """
    # A job in the background ignores Ctrl+C, and so would the processes that tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "suite_cost_plugin.py").write_text(PLUGIN)
        out = Path(folder) / "costs"
        environment = {k: v for k, v in os.environ.items() if k != "MEMPROF_TEST_CACHE"}
        environment |= {
            "PYTHONPATH": os.pathsep.join((str(checkout), folder)),
            "SUITE_COST": str(out),
            "CI": "1",  # the same random examples
        }
        there = [t for t in tests if (checkout / t).exists()]
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "suite_cost_plugin"]
        selected = ["-m", "not simgpu and not gpu", *there]
        done = subprocess.run([*command, *selected], cwd=checkout, env=environment, check=False)
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if not lines or lines[-1][0] != "end":
        raise RuntimeError(f"pytest ended early, with status {done.returncode}")
    costs: Costs = {}
    for test, own, children in lines:
        path, _, function = test.partition("::")
        folder_of_tests = "/".join(Path(path).parts[:2]) if function else "start and end"
        key = folder_of_tests, function.partition("[")[0]
        before = costs.get(key, (0.0, 0.0))
        costs[key] = before[0] + own, before[1] + children
    return costs


@contextmanager
def work_tree(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            for name in SOURCES:
                if not (path / "memprof" / name).exists():
                    (path / "memprof" / name).symlink_to(Path("..") / name)
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def table(mine: Costs, other: Costs | None) -> str:
    """A line for each folder, in seconds: the process, its children, both; and the comparison."""
    rows = [
        ["folder", "python", "children", "total", *(["since", "before", "ratio"] * bool(other))]
    ]
    folders = sorted({folder for folder, _ in {**mine, **(other or {})}})
    for name in [*folders, "all"]:
        chosen = {k: c for k, c in mine.items() if name in (k[0], "all")}
        own, children = (sum(c[i] for c in chosen.values()) for i in (0, 1))
        row = [name, f"{own:.0f}", f"{children:.0f}", f"{own + children:.0f}"]
        if other is not None:
            before = sum(sum(c) for k, c in other.items() if name in (k[0], "all"))
            since = sum(sum(c) for k, c in chosen.items() if k not in other)
            ratio = f"{(own + children - since) / before:.2f}" if before else "-"
            row += [f"{since:.0f}", f"{before:.0f}", ratio]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            c.rjust(w) if i else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=["test"], help="folders or files")
    parser.add_argument("--against", metavar="COMMIT", help="measure this one too, first")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} alone")
    arguments = parser.parse_args()
    tests = [QUICK] if arguments.quick else arguments.tests
    other = None
    if arguments.against:
        with work_tree(arguments.against) as checkout:
            other = measure(checkout, tests)
    print(table(measure(ROOT, tests), other))


if __name__ == "__main__":
    main()

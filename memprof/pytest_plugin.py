"""Limits of device memory in pytest, without a GPU; loaded by pytest itself (docs/gates.md).

    @pytest.mark.limit_device_memory("2 GiB", gpu="a100-40gb")
    def test_step():
        train_step(Model().cuda())

Note [A gated test]
~~~~~~~~~~~~~~~~~~~
A test with the mark runs in a process of its own, on the simulated device, in a pytest that runs
nothing else: its fixtures are set up there and not here, where torch may not even be importable.
Marks like ``skip`` and ``xfail`` are judged here. ``addopts`` of the configuration do not hold
there, since they may ask for workers; how modules are imported does, and so do options that the
project's own ``conftest.py`` has added (``--runslow``).

The limit is for the most that torch's allocator reserved. With a baseline the most that it had
handed out is compared, since it reserves in segments of 2 MiB and more. Both are the same in each
run, to the byte, for the same torch, so a baseline may be compared without any tolerance.
"""

from __future__ import annotations

import json
import os

import pytest

from memprof.what_if.gate import CHILD, OPTIONS

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_runtest_logreport",
]

MARK = "limit_device_memory"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of gates."""
    group = parser.getgroup("memprof", "limits of device memory (memprof)")
    group.addoption(
        "--memprof-update",
        action="store_true",
        help="Write what tests with limit_device_memory take as their new baselines.",
    )
    group.addoption(
        "--memprof-gpu", metavar="GPU", help="The GPU of tests that name none. [h100-80gb]"
    )
    group.addoption(
        "--memprof-table",
        metavar="FILE",
        help="Write what these tests take there, as a table in Markdown.",
    )


@pytest.hookimpl(tryfirst=True)  # A conftest may look at its options in its own.
def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and begin the table."""
    child = os.environ.get(CHILD)
    if child is not None:
        from memprof.what_if.gate import take

        take(config, child + OPTIONS)
    table = config.getoption("--memprof-table")
    if table is not None and not hasattr(config, "workerinput"):  # workers of pytest-xdist add rows
        from memprof.what_if.gate.item import begin_table

        try:
            begin_table(table)
        except OSError as e:
            raise pytest.UsageError(f"--memprof-table: {table}: {e.strerror}") from e
    config.addinivalue_line(
        "markers",
        f"{MARK}(limit=None, *, gpu=None, growth=None): run the test on a simulated device, and "
        "fail it if more is reserved than the limit ('2 GiB'), or more is allocated than the "
        "baseline and growth ('0 %') allow.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each test with the mark run in a process of its own; see Note [A gated test]."""
    if CHILD in os.environ:
        return
    for item in items:
        mark = item.get_closest_marker(MARK)
        if mark is not None and isinstance(item, pytest.Function):
            from memprof.what_if.gate.item import gate

            gate(item, mark)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In a gated test's own process, leave what became of it."""
    path = os.environ.get(CHILD)
    if path is None:
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    with open(path, "a") as f:
        print(json.dumps([report.when, report.outcome, reason]), file=f)

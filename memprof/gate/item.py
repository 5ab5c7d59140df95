"""A test that runs in a process of its own, on the simulated device."""

from __future__ import annotations

import functools
import json
import os
import pickle
import sys
import tempfile
from typing import Any

import pytest

from memprof.gate import leave
from memprof.simulate.command_line import Command
from memprof.simulate.parent import Settings, Simulation, attempt
from memprof.simulate.torch_config import WITHOUT_TIMING
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu

from . import CHILD, OPTIONS
from .judge import BadGate, add, judge, read_mark


def gate(item: pytest.Function, mark: pytest.Mark) -> None:
    """Let a test run on the simulated device, and be judged by what it took there."""
    instance: Any = item  # pytest looks at instances, where mypy sees methods of a class
    instance.setup = instance.teardown = _nothing
    instance.runtest = functools.partial(_run, item, mark)


def _nothing() -> None:
    """Fixtures are set up, and taken down, where the test runs. What ``unittest`` takes down here
    would be what it has set up."""


def _run(item: pytest.Function, mark: pytest.Mark) -> None:
    __tracebackhide__ = True
    config = item.config
    try:
        asked = read_mark(mark)
        gpu = find_gpu(asked.gpu or config.getoption("--memprof-gpu") or DEFAULT_GPU)
        simulation, output = _simulate(item, gpu)
    except (BadGate, SimulationError) as e:
        pytest.fail(f"{item.nodeid}: {e}", pytrace=False)
    except SystemExit as e:  # by SIGTERM, which to pytest would be the failure of one test
        status = e.code if isinstance(e.code, int) else 1
        pytest.exit(f"ended while {item.nodeid} ran on the simulated device", returncode=status)
    update: bool = config.getoption("--memprof-update")
    try:
        problem, row = judge(item.nodeid, item.path, asked, simulation, update=update)
    except BadGate as e:
        pytest.fail(f"{item.nodeid}: {e}", pytrace=False)
    table = config.getoption("--memprof-table")
    if table is not None:
        add(table, row)
    if problem:
        pytest.fail(problem + (f"\n\nIts output:\n{output}" if output else ""), pytrace=False)


def _simulate(item: pytest.Function, gpu: Gpu) -> tuple[Simulation, str]:
    """Run the test there; skips where it skips.

    Raises:
        BadGate: the test failed, or was not there.
        SimulationError: the device cannot be had here.
    """
    config = item.config
    with tempfile.TemporaryDirectory(prefix="memprof-gate-") as folder:
        reports, output = os.path.join(folder, "reports"), os.path.join(folder, "output")
        options = ["--runxfail", "-q", "--no-header", "-p", "no:cacheprovider"]
        options += ["-o", "addopts=", f"--rootdir={config.rootpath}"]
        options += [f"--import-mode={config.getoption('importmode')}"]
        plugin = config.pluginmanager.get_plugin("memprof.pytest_plugin")
        options += ["-p", "memprof" if plugin is None else "memprof.pytest_plugin"]
        if config.inipath is not None:
            options += ["-c", str(config.inipath)]
        # A node ID is no path where the file lies outside of the root.
        test = f"{item.path}::{item.nodeid.partition('::')[2]}"
        command = Command(sys.executable, (), ("-m", "pytest", *options, test))
        settings = Settings(
            gpu=gpu,
            steps=sys.maxsize,
            until_still=False,
            output=output,
            torch_config=tuple(f"{k}={v}" for k, v in WITHOUT_TIMING.items()),
        )
        environment = {k: v for k, v in os.environ.items() if k != "PYTEST_ADDOPTS"}
        environment[CHILD] = reports
        try:
            leave(config, reports + OPTIONS)
        except (pickle.PicklingError, TypeError, AttributeError) as e:
            raise BadGate(f"an option of conftest.py cannot be sent to its process: {e}") from e
        found = attempt(command, settings, environment)
        try:
            with open(output, errors="replace") as f:
                text = f.read().strip()
        except FileNotFoundError:
            text = ""
        outcomes = _read(reports)
    memory = found.outcome.out_of_memory
    for when, outcome, reason in outcomes:
        if outcome == "skipped":
            pytest.skip(reason.removeprefix("Skipped: "))
        if outcome == "failed" and (memory is None or when != "call"):
            raise BadGate(f"it failed on the simulated {gpu.name}, in its {when}\n{reason}")
    if not any(when == "call" for when, _, _ in outcomes):
        # It was not collected, or it ended its process or pytest: what it took then says nothing.
        failure = found.outcome.failure
        why = f"{failure.kind}: {failure.message}" if failure is not None else "it did not end"
        raise BadGate(f"on the simulated {gpu.name} {why}\n{text}")
    return found, text if memory is not None else ""


def _read(path: str) -> list[tuple[str, str, str]]:
    try:
        with open(path) as f:
            return [tuple(json.loads(line)) for line in f]
    except FileNotFoundError:
        return []

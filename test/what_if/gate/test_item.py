"""A gated test's process, without a device: how it is called, and ends that say nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memprof import pytest_plugin
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.gate import CHILD, item as gated
from memprof.what_if.simulate import parent
from memprof.what_if.simulate.command_line import BadInput, Command
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.request import Failure, Outcome


class Child:
    """Takes the place of the process; ``reports`` is what it leaves."""

    def __init__(self, reports: list[tuple[str, str, str]], outcome: Outcome) -> None:
        self.reports, self.outcome = reports, outcome
        self.words: tuple[str, ...] = ()

    def attempt(
        self, command: Command, settings: Settings, environment: Mapping[str, str]
    ) -> Simulation:
        self.words = command.program
        with open(environment[CHILD], "w") as f:
            f.writelines(json.dumps(report) + "\n" for report in self.reports)
        return Simulation(settings.gpu, True, None, self.outcome)


def an_item(root: Path, path: Path, nodeid: str) -> Any:
    """Of pytest's items what a gate looks at."""
    options = {"importmode": "prepend", "--memprof-update": False}
    config = SimpleNamespace(
        rootpath=root,
        inipath=None,
        getoption=options.get,
        pluginmanager=SimpleNamespace(get_plugin=lambda name: None),
        option=SimpleNamespace(),
        _parser=SimpleNamespace(_anonymous=SimpleNamespace(options=[])),
    )
    return SimpleNamespace(config=config, path=path, nodeid=nodeid)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (
            Outcome(failure=Failure(kind="Died", message="left by os._exit", trace="")),
            "left by os._exit",
        ),
        (Outcome(status=2), "did not end"),  # pytest.exit()
    ],
)
def test_a_test_that_ends_its_process_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, why: str
) -> None:
    child = Child([("setup", "passed", "")], outcome)
    monkeypatch.setattr(gated, "attempt", child.attempt)
    item = an_item(tmp_path, tmp_path / "test_a.py", "test_a.py::test_it")
    with pytest.raises(BadInput, match=why):
        gated._simulate(item, find_gpu("t4"))


def test_a_file_outside_of_the_root_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Child([("setup", "passed", ""), ("call", "passed", "")], Outcome())
    monkeypatch.setattr(gated, "attempt", child.attempt)
    file = tmp_path / "elsewhere" / "test_a.py"
    # What pytest calls a test of a file that was given by name and lies elsewhere.
    gated._simulate(an_item(tmp_path / "root", file, "::TestA::test_it"), find_gpu("t4"))
    assert child.words[-1] == f"{file}::TestA::test_it"


def test_sigterm_ends_pytest_and_not_one_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*arguments: object) -> Simulation:
        raise SystemExit(143)

    monkeypatch.setattr(gated, "attempt", terminated)
    item = an_item(tmp_path, tmp_path / "test_a.py", "test_a.py::test_it")
    with pytest.raises(pytest.exit.Exception) as ended:
        gated._run(item, pytest.Mark("limit_device_memory", ("1 GiB",), {}, _ispytest=True))
    assert ended.value.returncode == 143


def test_a_method_of_unittest_has_one_outcome(tmp_path: Path) -> None:
    """Here of a mark that is refused, for which no device is needed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_a.py").write_text("""
import unittest
import pytest

class TestIt(unittest.TestCase):
    @pytest.mark.limit_device_memory("much")
    def test_it(self):
        pass
""")
    plugin = (
        [] if entry_points(group="pytest11", name="memprof") else ["-p", pytest_plugin.__name__]
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'much' is no limit" in done.stdout
    assert "1 failed in" in done.stdout


def test_another_thread_than_the_main_one_may_wait() -> None:
    """A test runner may run tests in one, where no signal can be handled."""
    found: list[int | None] = []
    words = [sys.executable, "-c", "pass"]
    settings = Settings(find_gpu("t4"), quiet=True)
    thread = threading.Thread(target=lambda: found.append(parent._wait(words, {}, settings)))
    thread.start()
    thread.join()
    assert found == [0]

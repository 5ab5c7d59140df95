"""A test that runs in a process of its own, on the simulated device, and whether it took more
memory than it may."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import Profile
from memprof.profiler.support.errors import ProfileError
from memprof.profiler.views.compare.diff_parts import account_changes
from memprof.profiler.views.report.failure import asked, asker
from memprof.profiler.views.report.format import format_both, format_bytes
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import DEFAULT_GPU, Gpu, find_gpu, parse_size
from memprof.what_if.simulate.changes import WITHOUT_TIMING
from memprof.what_if.simulate.command_line import BadInput, Command
from memprof.what_if.simulate.parent import Settings, Simulation, attempt
from memprof.what_if.simulate.result import profile_of, write_profile_of

from . import CHILD, OPTIONS, leave

_COLUMNS = ("test", "GPU", "reserved", "limit", "allocated", "baseline", "change", "")


def begin_table(path: str) -> None:
    """Write the head of a table in Markdown, over what was there."""
    rules = ["---", "---", *["--:"] * 5, "---"]
    with open(path, "w") as f:
        f.write(f"| {' | '.join(_COLUMNS)} |\n| {' | '.join(rules)} |\n")


def add_row(path: str, cells: Sequence[str]) -> None:
    """Add a row, in one piece."""
    with open(path, "a") as f:
        f.write(f"| {' | '.join(cells)} |\n")


def _cells(
    nodeid: str, gate: Gate, simulation: Simulation, old: int | None, passed: bool
) -> tuple[str, ...]:
    """Cells of the table row of a test that allocated ``old`` bytes before."""
    account = simulation.account
    reserved, allocated = (account.reserved, account.most_allocated) if account else (0, 0)
    return (
        f"`{nodeid}`".replace("|", "\\|"),
        simulation.gpu.key,
        format_bytes(reserved),
        "" if gate.limit is None else format_bytes(gate.limit),
        format_bytes(allocated),
        "" if old is None else format_bytes(old),
        f"{100 * (allocated - old) / old:+.2f} %" if old else "",
        "" if passed else "**failed**",
    )


FOLDER = "memprof-baselines"
"""Folder of baselines, beside the test's file."""

_LONGEST = 180
"""Bytes of a test's name in that of its baseline: file systems take 255, and a writer adds some."""

_TOP = 5


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits of a test: bytes of device memory, None for no limit; the GPU, None for the usual one;
    growth as a share of the baseline, None if it is not compared."""

    limit: int | None
    gpu: str | None
    growth: Fraction | None


def read_mark(mark: pytest.Mark) -> Gate:
    """Gate that a mark asks for.

    Raises:
        BadInput: its arguments are none that it has.
    """
    try:
        return _gate(*mark.args, **mark.kwargs)
    except TypeError as e:
        words = [repr(a) for a in mark.args] + [f"{k}={v!r}" for k, v in mark.kwargs.items()]
        raise BadInput(
            "limit_device_memory takes a limit such as '2 GiB', gpu='a100-40gb' and growth='0 %', "
            f"and was given {', '.join(words)}"
        ) from e


def _gate(limit: object = None, *, gpu: object = None, growth: object = None) -> Gate:
    if gpu is not None and not isinstance(gpu, str):
        raise BadInput(f"{gpu!r} is no GPU: write 'a100-40gb'")
    return Gate(_bytes(limit), gpu, _share(growth))


def _bytes(limit: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return limit
    try:
        if isinstance(limit, str) and not limit.strip().isdigit():
            return parse_size(limit)
    except SimulationError:
        pass
    raise BadInput(f"{limit!r} is no limit: write '2 GiB', '500 MiB', or bytes as a number")


def _share(growth: object) -> Fraction | None:
    if growth is None:
        return None
    text = growth.strip() if isinstance(growth, str) else ""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if found is None:
        raise BadInput(f"{growth!r} is no growth: write '0 %' or '2.5 %'")
    return Fraction(found[1]) / 100


def baseline_path(nodeid: str, test_file: Path) -> Path:
    """Path of a test's baseline: a profile, which other commands read too."""
    name = nodeid.partition("::")[2].replace("::", ".")
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", name)
    if safe != name or len(safe.encode()) > _LONGEST:  # and another name may look the same
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        safe = f"{safe.encode()[:_LONGEST].decode(errors='ignore')}-{digest}"
    return test_file.parent / FOLDER / test_file.stem / f"{safe}.memprof"


def judge(
    nodeid: str, test_file: Path, gate: Gate, simulation: Simulation, *, update: bool
) -> tuple[str, tuple[str, ...]]:
    """Judge the memory of a test: the problem in words, empty if there is none, and the test's row
    of a table. With ``update`` its memory becomes its baseline.

    Raises:
        BadInput: the baseline cannot be written.
    """
    path = baseline_path(nodeid, test_file)
    before, problem = None, ""
    try:
        before = read_profile(path) if path.exists() else None
    except ProfileError as e:
        problem = f"{nodeid}: its baseline cannot be read: {e}; --memprof-update writes it anew"
    old = before.accounts[0].most_allocated if before is not None and before.accounts else None
    if update and simulation.account is not None and simulation.outcome.out_of_memory is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_profile_of([simulation], str(path))
        except (OSError, ProfileError) as e:
            raise BadInput(f"its baseline cannot be written: {e}") from e
        problem, before = "", profile_of(simulation)
    if not problem or gate.growth is None:
        problem = _problem(nodeid, gate, simulation, path, before)
    return problem, _cells(nodeid, gate, simulation, old, not problem)


def _problem(
    nodeid: str, gate: Gate, simulation: Simulation, path: Path, before: Profile | None
) -> str:
    failed = simulation.outcome.out_of_memory
    if failed is not None and failed.failure is not None:
        f = failed.failure
        return (
            f"{nodeid} ran out of memory on {simulation.gpu.name} "
            f"({format_bytes(simulation.gpu.memory)}): {asked(f, format_bytes)} {asker(f)}"
        )
    account = simulation.account
    if account is None:
        return f"{nodeid} put nothing on a CUDA device, so that its limit says nothing"
    problems = []
    if gate.limit is not None and account.reserved > gate.limit:
        problems.append(
            f"{nodeid} reserved {format_both(account.reserved)} on {simulation.gpu.name}, more "
            f"than its limit of {format_both(gate.limit)}"
        )
    if gate.growth is not None and before is None:
        problems.append(
            f"{nodeid} has no baseline {path}: run pytest with --memprof-update and commit it"
        )
    elif gate.growth is not None and before is not None:
        # Not what is reserved, which grows in segments of 2 MiB and more.
        old = before.accounts[0].most_allocated if before.accounts else 0
        now = account.most_allocated
        if now > old * (1 + gate.growth):
            problems.append(
                f"{nodeid} allocated {format_both(now)} at its peak, "
                f"{100 * (now - old) / max(old, 1):.2f} % more than its baseline of "
                f"{format_both(old)}"
            )
    if not problems:
        return ""
    return "\n".join([*problems, *_what_grew(before, profile_of(simulation))])


def _what_grew(before: Profile | None, after: Profile) -> list[str]:
    """Lines on what grew since the baseline; without one, what there is most of."""
    lines = []
    found = account_changes(before, after)[0] if before is not None else []
    if before is not None and before.torch != after.torch:
        lines.append(f"The baseline is of torch {before.torch}, this run of {after.torch}")
    for quantity in found[:1]:
        for view in ("category", "module", "line"):
            grown = [c for c in quantity.views[view] if c.change > 0][:_TOP]
            if grown:
                lines.append(f"Grown since the baseline, by {view}:")
                for c in grown:
                    change, before_ = format_bytes(c.change), format_bytes(c.before)
                    lines.append(f"  {'+' + change:>10}  {c.key}  ({before_} before)")
    if not found and after.accounts:
        lines.append("What is reserved at the peak:")
        parts = sorted(after.accounts[0].parts(), key=lambda part: -part[1])
        lines += [f"  {format_bytes(n):>9}  {what}" for what, n in parts[:_TOP] if n]
    return lines


def gate(item: pytest.Function, mark: pytest.Mark) -> None:
    """Let a test run on the simulated device, and be judged by what it took there."""
    instance: Any = item  # pytest looks at instances, where mypy sees methods of a class
    # Fixtures are set up, and taken down, where the test runs.
    instance.setup = instance.teardown = lambda: None
    instance.runtest = functools.partial(_run, item, mark)


def _run(item: pytest.Function, mark: pytest.Mark) -> None:
    __tracebackhide__ = True
    config = item.config
    try:
        asked = read_mark(mark)
        gpu = find_gpu(asked.gpu or config.getoption("--memprof-gpu") or DEFAULT_GPU)
        simulation, output = _simulate(item, gpu)
    except (BadInput, SimulationError) as e:
        pytest.fail(f"{item.nodeid}: {e}", pytrace=False)
    except SystemExit as e:  # by SIGTERM, which to pytest would be the failure of one test
        status = e.code if isinstance(e.code, int) else 1
        pytest.exit(f"ended while {item.nodeid} ran on the simulated device", returncode=status)
    update: bool = config.getoption("--memprof-update")
    try:
        problem, cells = judge(item.nodeid, item.path, asked, simulation, update=update)
    except BadInput as e:
        pytest.fail(f"{item.nodeid}: {e}", pytrace=False)
    table = config.getoption("--memprof-table")
    if table is not None:
        add_row(table, cells)
    if problem:
        pytest.fail(problem + (f"\n\nIts output:\n{output}" if output else ""), pytrace=False)


def _simulate(item: pytest.Function, gpu: Gpu) -> tuple[Simulation, str]:
    """Run the test there; skips where it skips.

    Raises:
        BadInput: the test failed, or was not there.
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
            raise BadInput(f"an option of conftest.py cannot be sent to its process: {e}") from e
        found = attempt(command, settings, environment)
        text = _read(output).strip()
        outcomes = [json.loads(line) for line in _read(reports).splitlines()]
    memory = found.outcome.out_of_memory
    for when, outcome, reason in outcomes:
        if outcome == "skipped":
            pytest.skip(reason.removeprefix("Skipped: "))
        if outcome == "failed" and (memory is None or when != "call"):
            raise BadInput(f"it failed on the simulated {gpu.name}, in its {when}\n{reason}")
    if not any(when == "call" for when, _, _ in outcomes):
        # It was not collected, or it ended its process or pytest: what it took then says nothing.
        failure = found.outcome.failure
        why = f"{failure.kind}: {failure.message}" if failure is not None else "it did not end"
        raise BadInput(f"on the simulated {gpu.name} {why}\n{text}")
    return found, text if memory is not None else ""


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""

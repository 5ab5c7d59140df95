"""``memprof doctor``: what is installed here, and what will and will not work.

Every probe runs by itself. What can be tried is tried (a C++ file is compiled), not guessed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Literal

import click

from memprof.other_memprof import REPAIR, other_memprof
from memprof.profiler.support.host import UNKNOWN_VERSION, installed_version
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.page import style_of
from memprof.profiler.views.report.section import EVERY, Note, Section, Table
from memprof.profiler.views.report.text import render

from . import _torch_compat
from ._common import json_option, print_json, print_text


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed here, what works and what does not.

    Exits 1 if memprof cannot work here as a backend.
    """
    diagnosis = examine()
    if as_json:
        print_json(diagnosis)
    else:
        print_text(render(in_words(diagnosis), style_of(sys.stdout)))
    if not diagnosis.works:
        raise SystemExit(1)


TORCH_OLDEST = (2, 11)
TORCH_NEWEST = (2, 15)
"""Oldest and newest torch that the test suite is run on."""

COMPILE_TIMEOUT_S = 20

Status = Literal["ok", "warn", "fail"]
"""Outcome of a probe; ``warn``: works with limits, or is not needed here."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of one probe in words, and what to do about it, "" for nothing."""

    name: str
    status: Status
    detail: str
    advice: str = ""


@dataclass(slots=True)
class Diagnosis:
    works: bool
    environment: list[ProbeResult]
    features: list[ProbeResult]
    next: str
    """Next thing to type: a command, or the advice of what fails first."""


class _Problem(Exception):
    """Raised by a probe: its status, detail, and maybe advice."""


def examine() -> Diagnosis:
    """Run all probes. Takes a few seconds, most of them ``import torch``. Never raises."""
    found: dict[str, ProbeResult] = {}
    environment: dict[str, Callable[[], str]] = {
        "Python": lambda: f"{platform.python_version()} ({sys.executable})",
        "memprof": _memprof,
        "torch": _torch,
        "triton": _triton,
        "devices": _devices,
        "C++ compiler": _compiler,
        "entry point": _entry_point,
    }
    # Of each, what it needs.
    features: dict[str, tuple[tuple[str, ...], Callable[[], str]]] = {
        'torch.compile(backend="memprof")': (("torch", "entry point"), _backend),
        "Inductor code for CPU": (
            ("torch", "C++ compiler"),
            lambda: "compiled by the C++ compiler above",
        ),
        "Inductor code for GPU": ((), lambda: _gpu_code(found["triton"])),
        "CUDA graphs": ((), _cuda_graphs),
        "memprof simulate": ((), _simulation),
        "memprof report": (
            (),
            lambda: "what reads files: report, diff, export and others, without torch",
        ),
    }
    for name, probe in environment.items():
        found[name] = _probe(name, probe)
    for name, (needs, probe) in features.items():
        missing = [need for need in needs if found[need].status == "fail"]
        found[name] = _probe(name, probe)
        if missing:
            found[name] = ProbeResult(name, "fail", f"needs {missing[0]}")
    works = all(found[n].status != "fail" for n in ("torch", "entry point"))
    code = [found[f"Inductor code for {kind}"].status for kind in ("CPU", "GPU")]
    works = works and "ok" in code
    return Diagnosis(
        works,
        [found[name] for name in environment],
        [found[name] for name in features],
        _next(works, found),
    )


def _next(works: bool, found: dict[str, ProbeResult]) -> str:
    """The one command that leads on from here."""
    simulates = found["memprof simulate"].status == "ok"
    if simulates and found["Inductor code for GPU"].status != "ok":
        return "memprof simulate --gpu h100-80gb -- python train.py"
    if works:
        return "memprof run train.py"
    failures = (f for f in found.values() if f.status == "fail" and f.advice)
    return next((f"{f.advice} ({f.name})" for f in failures), "memprof report FILE")


def in_words(diagnosis: Diagnosis) -> Iterator[Section]:
    columns = (col.Text("status"), col.Text("what"), col.Text("found", fold=True))
    for title, findings in (
        ("This machine", diagnosis.environment),
        ("What works here", diagnosis.features),
    ):
        rows = [
            (f.status, f.name, f"{f.detail} -> {f.advice}" if f.advice else f.detail)
            for f in findings
        ]
        yield Section("", title, tables=(Table(columns, rows, least=EVERY),))
    works = ", ".join(f.name for f in diagnosis.features if f.status == "ok")
    message = "memprof works here."
    if not diagnosis.works:
        message = f"memprof does not work here as a backend: see `fail`. These work: {works}."
    yield Section("", "", (Note(message), Note(f"Next: {diagnosis.next}")))


def _probe(name: str, probe: Callable[[], str]) -> ProbeResult:
    try:
        return ProbeResult(name, "ok", probe())
    except _Problem as e:
        return ProbeResult(name, *e.args)
    except Exception as e:
        if isinstance(e, ImportError) and name != "torch":
            return ProbeResult(name, "fail", "needs torch")  # whose own finding says why
        text = " ".join(str(e).split())
        return ProbeResult(name, "fail", f"{type(e).__name__}: {text[:300]}")


# The environment


def _memprof() -> str:
    if other := other_memprof():
        raise _Problem("fail", other, REPAIR)
    if (found := installed_version()) == UNKNOWN_VERSION:
        raise _Problem("warn", "not installed, imported from a folder", "pip install .")
    return found


def _torch() -> str:
    if importlib.util.find_spec("torch") is None:
        raise _Problem("fail", "not installed", "pip install torch")
    import torch

    found = f"{torch.__version__}"
    match = re.match(r"(\d+)\.(\d+)", found)
    release = (int(match[1]), int(match[2])) if match else TORCH_NEWEST
    supported = " to ".join(f"{a}.{b}" for a, b in (TORCH_OLDEST, TORCH_NEWEST))
    if release < TORCH_OLDEST:
        raise _Problem("fail", f"{found}; supported: {supported}", "upgrade torch")
    if release > TORCH_NEWEST:
        raise _Problem(
            "warn",
            f"{found} is newer than what memprof is tested with ({supported})",
            "if graphs run unobserved, the ledger of a report says why; upgrade memprof",
        )
    return found


def _triton() -> str:
    for name in ("triton", "pytorch-triton", "triton-windows"):
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    raise _Problem("warn", "not installed; only code for GPUs needs it")


def _devices() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ", ".join([f"cpu ({cores} cores)", *_torch_compat.accelerators()])


def _compiler() -> str:
    compiler = _torch_compat.find_cpp_compiler()
    problem = _compile(compiler)
    if problem is None:
        return f"{compiler} compiles (C++17, Python.h, OpenMP)"
    advice = "install g++ or clang, the python3-dev package of this Python, and OpenMP"
    raise _Problem("fail", f"{compiler} does not compile: {problem}", advice)


def _compile(compiler: str) -> str | None:
    """None, or what went wrong with what Inductor's code for CPUs needs."""
    with tempfile.TemporaryDirectory(prefix="memprof-doctor-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text("#include <Python.h>\n#include <omp.h>\n")
        command = [compiler, "-std=c++17", "-shared", "-fPIC", "-fopenmp"]
        command += [f"-I{sysconfig.get_paths()['include']}", str(source)]
        command += ["-o", os.path.join(folder, "probe.so")]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            return str(e)
    if done.returncode == 0:
        return None
    lines = done.stderr.decode(errors="replace").splitlines()
    errors = [line for line in lines if "error" in line]
    return (errors or lines or [f"exit status {done.returncode}"])[0][:200]


def _entry_point() -> str:
    found = list(entry_points(group="torch_dynamo_backends", name="memprof"))
    if not found:
        raise _Problem(
            "fail",
            'torch.compile(backend="memprof") would not find memprof: no entry point',
            "install memprof with pip; a folder on PYTHONPATH is not enough",
        )
    return found[0].value


# What works


def _backend() -> str:
    if "memprof" not in _torch_compat.backend_names():
        raise _Problem("fail", "torch does not list the backend")
    return "torch lists the backend"


def _gpu_code(triton: ProbeResult) -> str:
    devices = _torch_compat.accelerators()
    if not devices:
        raise _Problem("warn", "no accelerator here")
    if triton.status != "ok":
        raise _Problem("fail", f"{devices[0]} needs triton, which is not installed")
    return f"triton for {devices[0]}"


def _cuda_graphs() -> str:
    if reason := _torch_compat.why_no_cuda_graphs():
        raise _Problem("warn", f"no: {reason}")
    from memprof.cudagraph_trees.replay import native

    return f"torch can record and replay; native code for replays: {native.state()}"


def _simulation() -> str:
    from memprof.simulated_cuda.build import compiler
    from memprof.simulated_cuda.errors import SimulationError
    from memprof.simulated_cuda.torch_build import find_torch

    try:
        torch = find_torch()
        compiler(os.environ)
    except SimulationError as e:
        message, _, commands = str(e).partition("\n")
        raise _Problem(
            "warn", f"no: {message.rstrip(':')}", commands.partition("\n")[0].strip()
        ) from e
    return f"torch {torch.version} can run on a simulated device"

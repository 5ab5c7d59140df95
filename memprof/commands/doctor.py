"""``memprof doctor``: what is installed here, and what will and will not work.

Every probe runs by itself. What can be tried is tried (a C++ file is compiled), not guessed.
"""

from __future__ import annotations

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
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

import click

from memprof.other_memprof import REPAIR, other_memprof
from memprof.profiler.support.host import UNKNOWN_VERSION, installed_version
from memprof.profiler.views.report import columns as col
from memprof.profiler.views.report.section import EVERY, Note, Section, Table
from memprof.profiler.views.report.text import render
from memprof.profiler.views.report.text_page import style_of

from . import _torch_compat
from ._common import json_option, print_result


@click.command()
@json_option()
def doctor(as_json: bool) -> None:
    """Say what is installed here, what works and what does not.

    Exits 1 if memprof cannot work here as a backend.
    """
    diagnosis = examine()
    print_result(as_json, diagnosis, lambda: render(in_words(diagnosis), style_of(sys.stdout)))
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
    found: list[ProbeResult]
    next: str
    """Next thing to type: a command, or the advice of what fails first."""


Outcome = tuple[Status, str] | tuple[Status, str, str]
"""A probe's status and detail, and maybe advice."""

BACKEND = 'torch.compile(backend="memprof")'
GPU_CODE = "Inductor code for GPU"


def examine() -> Diagnosis:
    """Run all probes. Takes a few seconds, most of them ``import torch``. Never raises."""
    probes: dict[str, Callable[[], Outcome]] = {
        "Python": lambda: ("ok", f"{platform.python_version()} ({sys.executable})"),
        "memprof": _memprof,
        "torch": _torch,
        "devices": _devices,
        "C++ compiler": _compiler,
        BACKEND: _backend,
        GPU_CODE: _gpu_code,
        "CUDA graphs": _cuda_graphs,
        "memprof simulate": _simulation,
    }
    found = {name: _probe(name, probe) for name, probe in probes.items()}
    works = all(found[name].status != "fail" for name in ("torch", BACKEND))
    works = works and "ok" in (found["C++ compiler"].status, found[GPU_CODE].status)
    return Diagnosis(works, [*found.values()], _next(works, found))


def _next(works: bool, found: dict[str, ProbeResult]) -> str:
    """The one command that leads on from here."""
    if found["memprof simulate"].status == "ok" and found[GPU_CODE].status != "ok":
        return "memprof simulate --gpu h100-80gb -- python train.py"
    if works:
        return "memprof run train.py"
    failures = (f for f in found.values() if f.status == "fail" and f.advice)
    return next((f"{f.advice} ({f.name})" for f in failures), "memprof report FILE")


def in_words(diagnosis: Diagnosis) -> Iterator[Section]:
    columns = (col.Text("status"), col.Text("what"), col.Text("found", fold=True))
    rows = [
        (f.status, f.name, f"{f.detail} -> {f.advice}" if f.advice else f.detail)
        for f in diagnosis.found
    ]
    yield Section("", "This machine", tables=(Table(columns, rows, least=EVERY),))
    message = "memprof works here."
    if not diagnosis.works:
        message = (
            "memprof does not work here as a backend: see `fail`. Files can be read: memprof "
            "report, diff and export need no torch."
        )
    yield Section("", "", (Note(message), Note(f"Next: {diagnosis.next}")))


def _probe(name: str, probe: Callable[[], Outcome]) -> ProbeResult:
    try:
        return ProbeResult(name, *probe())
    except Exception as e:
        if isinstance(e, ImportError) and name != "torch":
            return ProbeResult(name, "fail", "needs torch")  # whose own finding says why
        text = " ".join(str(e).split())
        return ProbeResult(name, "fail", f"{type(e).__name__}: {text[:300]}")


def _memprof() -> Outcome:
    if other := other_memprof():
        return "fail", other, REPAIR
    if (found := installed_version()) == UNKNOWN_VERSION:
        return "warn", "not installed, imported from a folder", "pip install ."
    return "ok", found


def _torch() -> Outcome:
    if importlib.util.find_spec("torch") is None:
        return "fail", "not installed", "pip install torch"
    import torch

    found = str(torch.__version__)
    release = tuple(map(int, re.findall(r"\d+", found)[:2])) or TORCH_NEWEST
    supported = " to ".join(f"{a}.{b}" for a, b in (TORCH_OLDEST, TORCH_NEWEST))
    if release < TORCH_OLDEST:
        return "fail", f"{found}; supported: {supported}", "upgrade torch"
    if release > TORCH_NEWEST:
        detail = f"{found} is newer than what memprof is tested with ({supported})"
        return "warn", detail, "if graphs run unobserved, the ledger of a report says why"
    return "ok", found


def _devices() -> Outcome:
    return "ok", ", ".join([f"cpu ({os.cpu_count()} cores)", *_torch_compat.accelerators()])


def _compiler() -> Outcome:
    compiler = _torch_compat.find_cpp_compiler()
    problem = _compile(compiler)
    if problem is None:
        return "ok", f"{compiler} compiles (C++17, Python.h, OpenMP)"
    advice = "install g++ or clang, the python3-dev package of this Python, and OpenMP"
    return "fail", f"{compiler} does not compile: {problem}", advice


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


def _backend() -> Outcome:
    if not entry_points(group="torch_dynamo_backends", name="memprof"):
        advice = "install memprof with pip; a folder on PYTHONPATH is not enough"
        return "fail", "torch would not find memprof: no entry point", advice
    if "memprof" not in _torch_compat.backend_names():
        return "fail", "torch does not list the backend"
    return "ok", "torch lists the backend"


def _gpu_code() -> Outcome:
    devices = _torch_compat.accelerators()
    if not devices:
        return "warn", "no accelerator here"
    if importlib.util.find_spec("triton") is None:
        return "fail", f"{devices[0]} needs triton, which is not installed"
    return "ok", f"triton for {devices[0]}"


def _cuda_graphs() -> Outcome:
    if reason := _torch_compat.why_no_cuda_graphs():
        return "warn", f"no: {reason}"
    from memprof.cudagraph_trees.replay import native

    return "ok", f"torch can record and replay; native code for replays: {native.state()}"


def _simulation() -> Outcome:
    from memprof.simulated_cuda.build import compiler
    from memprof.simulated_cuda.errors import SimulationError
    from memprof.simulated_cuda.torch_build import find_torch

    try:
        torch = find_torch()
        compiler(os.environ)
    except SimulationError as e:
        message, _, commands = str(e).partition("\n")
        return "warn", f"no: {message.rstrip(':')}", commands.partition("\n")[0].strip()
    return "ok", f"torch {torch.version} can run on a simulated device"

"""``memprof doctor``: what is installed here, and what will and will not work.

Every probe runs by itself: one that fails says why, and the others go on. What can be
tried is tried (a C++ file is compiled, a file is created in each cache folder), not guessed.
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
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

import click

from memprof import _torch_compat
from memprof.profiler.report.page import PLAIN, Style, style_of

from ._common import json_option, print_json, print_text


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed here, what works and what does not.

    Exits 1 if memprof cannot work here.
    """
    diagnosis = examine()
    if as_json:
        print_json(diagnosis)
    else:
        print_text(render_doctor(diagnosis, style_of(sys.stdout)))
    if not diagnosis.works:
        raise SystemExit(1)


TORCH_OLDEST = (2, 11)
TORCH_NEWEST = (2, 15)
"""Oldest and newest torch that the test suite is run on."""

COMPILE_TIMEOUT_S = 20


class Status(str, Enum):
    """Outcome of a probe."""

    OK = "ok"
    WARN = "warn"
    """Works with limits, or is not needed here."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one probe found, in words, and what to do about it, "" for nothing."""

    name: str
    status: Status
    detail: str
    advice: str = ""


@dataclass(slots=True)
class Diagnosis:
    """All findings; ``works`` says whether memprof can work here at all."""

    works: bool = True
    environment: list[Finding] = field(default_factory=list)
    features: list[Finding] = field(default_factory=list)


def examine() -> Diagnosis:
    """Run all probes. Takes a few seconds, most of them ``import torch``. Never raises."""
    environment = [
        _probe(name, probe)
        for name, probe in (
            ("Python", lambda: (Status.OK, f"{platform.python_version()} ({sys.executable})")),
            ("memprof", _memprof),
            ("torch", _torch),
            ("triton", _triton),
            ("devices", _devices),
            ("C++ compiler", _compiler),
            ("entry point", _entry_point),
            ("Inductor cache", lambda: _writable(_torch_compat.inductor_cache_dir())),
            ("Triton cache", lambda: _writable(_torch_compat.triton_cache_dir())),
        )
    ]
    status = {f.name: f for f in environment}
    features = [
        _probe(name, probe)
        for name, probe in (
            ('torch.compile(backend="memprof")', lambda: _backend(status)),
            ("Inductor code for CPU", lambda: _cpu_code(status)),
            ("Inductor code for GPU", lambda: _gpu_code(status)),
            ("CUDA graphs", _cuda_graphs),
            ("CPU arena", _cpu_arena),
            ("memprof simulate", _simulation),
        )
    ]
    works = all(status[n].status is not Status.FAIL for n in ("torch", "entry point"))
    works = works and any(
        f.status is Status.OK for f in features if f.name.startswith("Inductor code")
    )
    return Diagnosis(works, environment, features)


def render_doctor(diagnosis: Diagnosis, style: Style = PLAIN) -> str:
    """A diagnosis as text."""
    codes = {Status.OK: "32", Status.WARN: "33", Status.FAIL: "31"}
    label = max(len(f.name) for f in (*diagnosis.environment, *diagnosis.features)) + 2
    out: list[str] = []
    sections = (("This machine", diagnosis.environment), ("What works here", diagnosis.features))
    for title, findings in sections:
        out += ["", title] if out else [title]
        for f in findings:
            mark = f"{f.status.value:<4}"
            if style.color:
                mark = f"\x1b[{codes[f.status]}m{mark}\x1b[0m"
            text = f.detail + (f" -> {f.advice}" if f.advice else "")
            indent = " " * (8 + label)
            lines = textwrap.wrap(text, max(style.width - len(indent), 30), break_on_hyphens=False)
            out.append(f"  {mark}  {f.name:<{label}}{lines[0] if lines else ''}")
            out += [indent + line for line in lines[1:]]
    out += [
        "",
        "memprof works here." if diagnosis.works else "memprof does not work here: see `fail`.",
    ]
    text = "\n".join(line.rstrip() for line in out) + "\n"
    return text.encode("ascii", "backslashreplace").decode() if style.ascii_only else text


def _probe(name: str, probe: Callable[[], tuple[Status, str] | tuple[Status, str, str]]) -> Finding:
    try:
        return Finding(name, *probe())
    except Exception as e:
        text = " ".join(str(e).split())
        return Finding(name, Status.FAIL, f"{type(e).__name__}: {text[:300]}")


# The environment


def _memprof() -> tuple[Status, str, str]:
    try:
        return Status.OK, version("memprof"), ""
    except PackageNotFoundError:
        return Status.WARN, "not installed, imported from a folder", "pip install ."


def _torch() -> tuple[Status, str, str]:
    if importlib.util.find_spec("torch") is None:
        return Status.FAIL, "not installed", "pip install torch"
    import torch

    found = f"{torch.__version__}"
    if match := re.match(r"(\d+)\.(\d+)", found):
        release = (int(match[1]), int(match[2]))
        supported = " to ".join(f"{a}.{b}" for a, b in (TORCH_OLDEST, TORCH_NEWEST))
        if release < TORCH_OLDEST:
            return Status.FAIL, f"{found}; supported: {supported}", "upgrade torch"
        if release > TORCH_NEWEST:
            return (
                Status.WARN,
                f"{found} is newer than what memprof is tested with ({supported})",
                "if graphs run unobserved, `memprof ledger FILE` says why; upgrade memprof",
            )
    return Status.OK, found, ""


def _triton() -> tuple[Status, str]:
    for name in ("triton", "pytorch-triton", "triton-windows"):
        try:
            return Status.OK, version(name)
        except PackageNotFoundError:
            continue
    return Status.WARN, "not installed; only code for GPUs needs it"


def _devices() -> tuple[Status, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Status.OK, ", ".join([f"cpu ({cores} cores)", *_torch_compat.accelerators()])


def _compiler() -> tuple[Status, str, str]:
    compiler = _torch_compat.find_cpp_compiler()
    # What Inductor's code for CPUs needs beyond the language: Python's headers, OpenMP.
    problem = _compile(compiler, "#include <Python.h>\n#include <omp.h>\n", ["-fopenmp"])
    if problem is None:
        return Status.OK, f"{compiler} compiles (C++17, Python.h, OpenMP)", ""
    if _compile(compiler, "", []) is not None:
        return Status.FAIL, f"{compiler} does not compile: {problem}", "install g++ or clang"
    if _compile(compiler, "#include <Python.h>\n", []) is not None:
        return (
            Status.FAIL,
            f"{compiler} compiles, but Python's headers are missing",
            "install the python3-dev package of this Python",
        )
    return Status.WARN, f"{compiler} compiles, without OpenMP: {problem}", "install libomp"


def _compile(compiler: str, includes: str, flags: list[str]) -> str | None:
    """Compile one line; None, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="memprof-doctor-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(f'{includes}extern "C" int probe() {{ return 0; }}\n')
        command = [compiler, "-std=c++17", "-shared", "-fPIC", *flags]
        command += [f"-I{sysconfig.get_paths()['include']}", str(source)]
        command += ["-o", os.path.join(folder, "probe.so")]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
                errors="replace",
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            return str(e)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return (errors or done.stderr.splitlines() or [f"exit status {done.returncode}"])[0][:200]


def _entry_point() -> tuple[Status, str, str]:
    found = list(entry_points(group="torch_dynamo_backends", name="memprof"))
    if not found:
        return (
            Status.FAIL,
            'torch.compile(backend="memprof") would not find memprof: no entry point',
            "install memprof with pip; a folder on PYTHONPATH is not enough",
        )
    target = found[0].value
    module = target.partition(":")[0]
    if importlib.util.find_spec(module) is None:
        return Status.FAIL, f"{target}: there is no module {module}", "reinstall memprof"
    return Status.OK, target, ""


def _writable(folder: str) -> tuple[Status, str, str]:
    """Can files be created in ``folder``, or in its nearest ancestor that exists?"""
    place = os.path.abspath(folder)
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as e:
        return (
            Status.FAIL,
            f"cannot write to {folder}: {e.strerror or e}",
            "set TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR to folders you can write to",
        )
    return Status.OK, f"{folder} is writable", ""


# What works


def _lacks(status: dict[str, Finding], *needed: str) -> str:
    """The first that is needed and failed, in words."""
    failed = (name for name in needed if status[name].status is Status.FAIL)
    return next((f"needs {name}: {status[name].detail}" for name in failed), "")


def _backend(status: dict[str, Finding]) -> tuple[Status, str]:
    if lacks := _lacks(status, "torch", "entry point"):
        return Status.FAIL, lacks
    if "memprof" not in _torch_compat.backend_names():
        return Status.FAIL, "torch does not list the backend"
    return Status.OK, "torch lists the backend"


def _cpu_code(status: dict[str, Finding]) -> tuple[Status, str]:
    if lacks := _lacks(status, "torch", "C++ compiler", "Inductor cache"):
        return Status.FAIL, lacks
    return Status.OK, "compiled by the C++ compiler above"


def _gpu_code(status: dict[str, Finding]) -> tuple[Status, str]:
    found = _torch_compat.accelerators()
    if not found:
        return Status.WARN, "no accelerator here"
    if status["triton"].status is not Status.OK:
        return Status.FAIL, f"{found[0]} needs triton, which is not installed"
    if status["Triton cache"].status is Status.FAIL:
        return Status.FAIL, status["Triton cache"].detail
    return Status.OK, f"triton for {found[0]}"


def _cuda_graphs() -> tuple[Status, str]:
    reason = _torch_compat.why_no_cuda_graphs()
    if reason:
        return Status.WARN, f"no: {reason}"
    from memprof.cudagraph_trees import native

    return Status.OK, f"torch can record and replay; native code for replays: {native.state()}"


def _simulation() -> tuple[Status, str]:
    from memprof.simulated_cuda.build import compiler
    from memprof.simulated_cuda.errors import SimulationError
    from memprof.simulated_cuda.torch_build import find_torch

    try:
        torch = find_torch()
        compiler(os.environ)
    except SimulationError as e:
        return Status.WARN, f"no: {str(e).partition(chr(10))[0]}"
    return Status.OK, f"torch {torch.version} can run on a simulated GPU"


def _cpu_arena() -> tuple[Status, str]:
    missing = _torch_compat.missing_arena_hooks()
    if missing:
        return Status.WARN, f"no: this torch lacks {', '.join(missing)}"
    return Status.OK, "torch can place tensors at given addresses"

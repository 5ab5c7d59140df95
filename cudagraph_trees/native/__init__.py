"""The part of a replay that is worth C++, built once for each torch and kept in a cache.

Note [Built beside the program]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Compiling against torch's headers takes a compiler ten to twenty seconds, and nobody waits for it:
the first process that records a graph starts the compiler as a process of its own, with low
priority, and does with torch's own function what the library will do. Recordings made after the
library is there use it, those before go on as they are. Where there is no compiler, or it fails,
that is how it stays: ``KEY.log`` beside the library has what the compiler said, and ``memprof
doctor`` says so.

Libraries lie in ``memprof/native`` under ``$MEMPROF_CACHE``, ``$XDG_CACHE_HOME`` or ``~/.cache``;
``KEY`` is made of the source, the versions of torch and Python, and the command.
``MEMPROF_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType

import torch

from .. import _torch_compat as compat

_NAME = "memprof_addresses"
_SOURCE = Path(__file__).with_name("addresses.cpp")
_ABANDONED_S = 600.0
"""So long after it began nobody is building any more."""


@functools.cache
def library() -> Path:
    """Where the library for this torch lies, or will."""
    what = (_SOURCE.read_text(), torch.__version__, sys.implementation.cache_tag, *_command())
    key = hashlib.sha256("\0".join(map(str, what)).encode()).hexdigest()[:16]
    base = os.environ.get("MEMPROF_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "memprof" / "native" / f"{key}.so"


def load() -> ModuleType | None:
    """The library, None while there is none. Never raises, and never waits for a compiler."""
    if os.environ.get("MEMPROF_NATIVE") == "0":
        return None
    try:
        if library().exists():
            return _loaded()
        _begin()
    except Exception as error:
        compat.log.debug("no native code for graph trees: %s", error)
    return None


def build(timeout_s: float = 300.0) -> ModuleType:
    """The library, which is built first where there is none.

    Raises:
        RuntimeError: it cannot be built; the message is the compiler's.
    """
    _begin()
    end = time.monotonic() + timeout_s
    while not library().exists():
        if not _lock().exists() or time.monotonic() > end:
            raise RuntimeError(f"no native code for graph trees: {state()}")
        time.sleep(0.05)
    return _loaded()


def state() -> str:
    """What there is, in a few words."""
    if os.environ.get("MEMPROF_NATIVE") == "0":
        return "switched off by MEMPROF_NATIVE=0"
    if library().exists():
        return f"built: {library()}"
    if shutil.which(_compiler()) is None:
        return f"there is no compiler {_compiler()}"
    if _lock().exists():
        return "it is being built"
    log = _log()
    return f"building it failed: {log}" if log.exists() else "not built yet"


@functools.cache
def _loaded() -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library()))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _begin() -> None:
    """Start the compiler, unless somebody has or it has failed before."""
    there = library()
    if there.exists() or shutil.which(_compiler()) is None:
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    lock, log, made = _lock(), _log(), there.with_suffix(f".{os.getpid()}.tmp")
    if lock.exists() and time.time() - lock.stat().st_mtime > _ABANDONED_S:
        lock.unlink(missing_ok=True)
    elif log.exists() and not lock.exists():
        return
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    compiler, *options = _command()
    command = shlex.join([compiler, str(_SOURCE), "-o", str(made), *options])
    paths = {name: shlex.quote(str(p)) for name, p in (("made", made), ("there", there))}
    script = (
        f"nice {command} >{shlex.quote(str(log))} 2>&1"
        f" && mv {paths['made']} {paths['there']} && rm -f {shlex.quote(str(log))};"
        f" rm -f {paths['made']} {shlex.quote(str(lock))}"
    )
    # Nobody's child: it goes on where this process ends, and is no zombie where it does not.
    subprocess.run(
        ["/bin/sh", "-c", f"({script}) &"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=True,
    )


def _lock() -> Path:
    return library().with_suffix(".building")


def _log() -> Path:
    return library().with_suffix(".log")


def _compiler() -> str:
    return os.environ.get("CXX") or "c++"


@functools.cache
def _command() -> tuple[str, ...]:
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return (
        *(_compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", "-w"),
        *(f"-I{path}" for path in headers),
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        # What torch has loaded for itself alone is found by name.
        *(f"-L{path}" for path in library_paths()),
        *("-ltorch_python", "-ltorch", "-lc10"),
    )

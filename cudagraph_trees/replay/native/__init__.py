"""The part of a replay that is worth C++, built once for each torch and kept in a cache.

Note [Built beside the program]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Compiling against torch's headers takes ten to twenty seconds, and nobody waits for it: the first
process that records a graph starts the compiler as a process of its own, with low priority, and
does in Python what the library will do. Recordings made after the library is there use it. Where
the compiler fails, that is how it stays until ``KEY.log`` is deleted, which has its output. What
cannot be loaded is taken away, and built anew by the next process.

Libraries lie in ``memprof/native`` under ``$MEMPROF_CACHE``, ``$XDG_CACHE_HOME`` or ``~/.cache``;
``KEY`` is made of the source, the machine, the versions of torch and Python, and the compiler.
``MEMPROF_NATIVE=0`` switches it off.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import time
from pathlib import Path
from types import ModuleType

import torch

from ... import _torch_compat as compat

_NAME = "memprof_replay"
_SOURCE = Path(__file__).with_name("replay.cpp")
_OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")
_ABANDONED_S = 600.0
"""Seconds after which a build that has not ended counts as abandoned."""


@functools.cache
def library() -> Path:
    """Absolute path of the library for this torch, which may not be built yet."""
    # What is cheap to know: a process that finds the library needs no headers.
    what = (
        _SOURCE.read_text(),
        torch.__version__,
        str(Path(torch.__file__).parent),
        sysconfig.get_config_var("SOABI"),
        platform.machine(),
        *platform.libc_ver(),
        *_OPTIONS,
        *_compiler(),
    )
    key = hashlib.sha256("\0".join(map(str, what)).encode()).hexdigest()[:16]
    base = os.environ.get("MEMPROF_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "memprof" / "native" / f"{key}.so"


def load(*, or_build: bool = True) -> ModuleType | None:
    """The library, None while there is none. Never raises, and never waits for a compiler;
    ``or_build`` starts one."""
    if os.environ.get("MEMPROF_NATIVE") == "0":
        return None
    try:
        if library().exists():
            return _loaded()
        if or_build:
            _begin()
    except Exception as error:
        compat.log.debug("no native code for graph trees: %s", error)
    return None


def build(timeout_s: float = 300.0) -> ModuleType:
    """The library, which is built first where there is none.

    Raises:
        RuntimeError: it cannot be built or loaded, or is switched off; the message says why.
    """
    end = time.monotonic() + timeout_s
    load()
    while _lock().exists() and time.monotonic() < end:
        time.sleep(0.05)
    found = load()
    if found is None:
        raise RuntimeError(f"no native code for graph trees: {state()}")
    return found


def state() -> str:
    """State of the library in a few words: built, failed, switched off. Never raises."""
    if os.environ.get("MEMPROF_NATIVE") == "0":
        return "switched off by MEMPROF_NATIVE=0"
    try:
        if library().exists():
            found = _loaded()
            return f"built: {library()}" if found is not None else f"{library()} cannot be loaded"
        if not _compiler():
            return f"there is no compiler {os.environ.get('CXX') or 'c++'}"
        if _lock().exists():
            return "it is being built"
        log = _log()
        return f"it failed; to try again, delete {log}" if log.exists() else "not built yet"
    except Exception as e:
        return f"there is no cache for it: {e}"


@functools.cache
def _loaded() -> ModuleType | None:
    """The library in this process, None where it is none or another machine's: that is found out
    once. It is taken away, so that another process builds it anew."""
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(library()))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as e:
        compat.log.debug("native code for graph trees: %s", e)
        library().unlink(missing_ok=True)
        return None
    return module


# Puts its command, the compiler, to work and cleans up after it.
_SCRIPT = """
("$@" -o "$made" >"$log" 2>&1 && mv "$made" "$there" && rm -f "$log"; rm -f "$made" "$lock") &
"""


def _begin() -> None:
    """Start the compiler, unless somebody has or it has failed before."""
    there, lock, log = library(), _lock(), _log()
    if there.exists() or not _compiler():
        return
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        if time.time() - lock.stat().st_mtime > _ABANDONED_S:
            lock.unlink(missing_ok=True)
    except FileNotFoundError:
        if log.exists():
            return
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    made = there.with_suffix(f".{os.getpid()}.tmp")
    files = {"there": there, "lock": lock, "log": log, "made": made}
    command = ["nice", *_compiler(), str(_SOURCE), *_OPTIONS, *_paths()]
    # Nobody's child: it goes on where this process ends, and is no zombie where it does not.
    subprocess.run(
        ["/bin/sh", "-c", _SCRIPT, "sh", *command],
        env={**os.environ, **{name: str(path) for name, path in files.items()}},
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


def _compiler() -> tuple[str, ...]:
    """The command of the compiler; nothing where there is none. ``CXX`` is a path, which may have
    spaces, or a command with arguments, such as ``ccache g++``."""
    given = os.environ.get("CXX") or "c++"
    if shutil.which(given) is not None:
        return (given,)
    parts = tuple(shlex.split(given))
    return parts if parts and shutil.which(parts[0]) is not None else ()


def _paths() -> list[str]:
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = [*include_paths(), sysconfig.get_paths()["include"]]
    return [
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *(f"-I{path}" for path in headers),
        # What torch has loaded for itself alone is found by name.
        *(f"-L{path}" for path in library_paths()),
        "-ltorch_python",
        "-ltorch",
        "-lc10",
    ]

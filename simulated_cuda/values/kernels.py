"""Triton's kernels, Inductor's among them, as C that runs on the host.

At its first launch a kernel's TTIR becomes C (`ttir`), gcc compiles it, and the device calls the
result from then on. What the device knows of a kernel is the image that the driver was given: a
hash of it leads to the TTIR, so that all launchers work. Images are noted where they are loaded;
those that C++ loads are searched in Triton's cache when they are launched.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..after_import import after_import
from ..control import library
from . import ttir

_CFLAGS = (
    "-O1",
    "-march=native",
    # What TTIR defines and C does not: integers wrap, memory has no type, sums are not reordered.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-w",
)
_device = library()
missing: list[str] = []
"""Kernels and operators that computed nothing."""


def say_missing(what: str) -> None:
    """Say once on stderr that a kernel or an operator computed nothing."""
    if what not in missing:
        missing.append(what)
        print("[simgpu] no values for", what, file=sys.stderr)


_ttir_of_image: dict[int, Callable[[], str]] = {}
"""Functions that give a kernel's TTIR, by the hash of its image."""
_compiled: list[ctypes.CDLL] = []
"""Kept: the device has the addresses of their functions."""


def _resolve(handle: int, name: bytes, image: int) -> None:
    """Give the device an implementation of a kernel; it calls this at the kernel's first launch."""
    try:
        function, sizes = _build(_ttir(name, image))
        _device.simgpu_bind(handle, function, (ctypes.c_int * len(sizes))(*sizes), len(sizes))
    except Exception as e:
        say_missing(f"kernel {name.decode()}: {type(e).__name__}: {e}")


def _tell_writes(handle: int, name: bytes, image: int) -> None:
    """Tell the device which pointers a kernel writes through, at its first launch."""
    try:
        found = ttir.written_arguments(_ttir(name, image))
    except KeyError:  # It is no kernel of Triton's.
        return
    _device.simgpu_bind_writes(handle, (ctypes.c_int * len(found))(*found), len(found))


def _ttir(name: bytes, image: int) -> str:
    """The TTIR of a kernel; raises KeyError where there is none."""
    if image not in _ttir_of_image:
        for cubin in _cubins(name.decode()):
            _note_cubin(cubin)
    return _ttir_of_image[image]()


_Resolver = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64)
resolve = _Resolver(_resolve)
"""``_resolve`` as a C function, for the simulated device."""
_writes = _Resolver(_tell_writes)


def tell_writes() -> None:
    """Tell the device from here on what kernels write to, which compute nothing."""
    hook_launchers()
    _device.simgpu_values(_writes, None)


def _build(text: str) -> tuple[int, list[int]]:
    """The address of a compiled kernel, and the sizes of its arguments in bytes."""
    source, sizes = ttir.to_c(text)
    root = os.environ.get("TRITON_CACHE_DIR") or Path("~/.triton/cache").expanduser()
    folder = Path(root) / "simgpu"
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256((source + str(_CFLAGS)).encode()).hexdigest()[:32]
    shared = folder / f"{key}.so"
    if not shared.exists():
        _compile(source, shared)
    compiled = ctypes.CDLL(str(shared))
    _compiled.append(compiled)
    address = ctypes.cast(compiled.run, ctypes.c_void_p).value
    assert address is not None
    return address, sizes


def _compile(source: str, target: Path) -> None:
    # Under a name of this thread's own: others may compile the same.
    unfinished = f"{target}.{os.getpid()}.{threading.get_ident()}"
    file = Path(unfinished + ".c")
    file.write_text(source)
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    ran = subprocess.run(
        ["gcc", *_CFLAGS, "-o", unfinished, str(file), "-lm"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if ran.returncode:
        raise ttir.UnsupportedError(f"{file} does not compile: {ran.stderr[:500]}")
    os.replace(unfinished, target)
    file.unlink()


def _note_cubin(cubin: str) -> None:
    """Note an image of Triton's cache, whose files of one kernel lie side by side."""
    image, text = Path(cubin), Path(cubin).with_suffix(".ttir")
    if image.exists() and text.exists():
        content = text.read_text()
        _ttir_of_image[_device.simgpu_image_hash(image.read_bytes())] = lambda: content


def _cubins(name: str) -> Iterator[str]:
    """The images of a kernel in the caches of Triton and of Inductor."""
    folders = (
        os.environ.get("TRITON_CACHE_DIR"),
        os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/nonexistent") + "/triton/*",
        os.path.expanduser("~/.triton/cache"),
    )
    for folder in folders:
        if folder:
            yield from glob.glob(f"{folder}/*/{glob.escape(name)}.cubin")


def hook_launchers() -> None:
    """Note each image that Triton, or Inductor's own launcher, loads from here on."""
    after_import("triton.compiler.compiler", _hook_triton)
    runtime = Path(torch.__file__).parent / "_inductor" / "runtime"
    has_new_name = (runtime / "static_triton_launcher.py").exists()
    launcher = "static_triton_launcher" if has_new_name else "static_cuda_launcher"
    after_import(f"torch._inductor.runtime.{launcher}", _hook_static_launcher)


def _hook_triton(compiler: Any) -> None:
    original = compiler.CompiledKernel._init_handles

    def init_handles(self: Any) -> None:
        if self.module is None:
            image = _device.simgpu_image_hash(self.kernel)
            _ttir_of_image[image] = lambda: self.asm["ttir"]
        original(self)

    compiler.CompiledKernel._init_handles = init_handles


def _hook_static_launcher(launcher: Any) -> None:
    kernel = (
        getattr(launcher, "StaticallyLaunchedTritonKernel", None)
        or launcher.StaticallyLaunchedCudaKernel
    )
    original = kernel.load_kernel

    def load_kernel(self: Any, device: Any) -> None:
        if self.function is None and self.cubin_path:
            _note_cubin(self.cubin_path)
        original(self, device)

    kernel.load_kernel = load_kernel

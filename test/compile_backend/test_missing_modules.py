"""The backend loads alone, in any order, and without modules of torch that it can do without."""

from __future__ import annotations

import subprocess
import sys

MISSING = """
import sys, torch, torch._inductor.compile_fx
for name in sys.argv[1:]:
    package, _, module = name.rpartition(".")
    vars(sys.modules[package]).pop(module)
    sys.modules[name] = None
import memprof.compile_backend.backend
"""


def run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)


def test_what_is_private_to_torch_is_loaded_first() -> None:
    run("-c", "import memprof.compile_backend._torch_compat")


def test_without_modules_that_are_not_needed_to_compile() -> None:
    names = ("logging_utils", "runtime_wrappers")
    missing = [f"torch._functorch._aot_autograd.{name}" for name in names]
    run("-c", MISSING, "torch._inductor.runtime.cache_dir_utils", *missing)

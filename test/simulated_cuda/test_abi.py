"""src/abi.h against NVIDIA's headers: every size, offset, value and prototype."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "simulated_cuda" / "src"
ABI = (SOURCES / "abi.h").read_text()


def headers() -> Path:
    for home in sorted(Path("~/.cache/simgpu").expanduser().glob("*/include")):
        text = home / "cuda_runtime_api.h"
        if text.is_file() and re.search(r"define CUDART_VERSION\s+13000\b", text.read_text()):
            return home
    pytest.skip("no headers of CUDA 13.0 in ~/.cache/simgpu/*/include")


def compiled(tmp_path: Path, *arguments: str) -> None:
    compiler = shutil.which("g++") or pytest.skip("no g++")
    command = [compiler, "-std=c++17", "-fsyntax-only", "-w", f"-I{SOURCES}", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_layouts_and_values(tmp_path: Path) -> None:
    checks = []
    for kind, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", ABI, re.S | re.M):
        checks.append(f"static_assert(sizeof(ours::{kind}) == sizeof(::{kind}));")
        # A member of a structure within is no member of this one.
        flat = re.sub(r"struct \{.*?\}", "int", body, flags=re.S)
        for member in re.findall(r"(\w+)(?:\[\d+\])?;", flat):
            checks.append(
                f"static_assert(offsetof(ours::{kind}, {member}) == offsetof(::{kind}, {member}));"
            )
    for name in re.findall(r"\b((?:cuda|CU_|CUDA_)\w+) = \d+", ABI):
        checks.append(f"static_assert((long)ours::{name} == (long)::{name});")
    assert len(checks) > 150
    program = tmp_path / "abi.cpp"
    program.write_text(
        "#include <cuda.h>\n#include <cuda_runtime_api.h>\n#include <cstddef>\n#include <cstdint>\n"
        '#undef CUDAAPI\nnamespace ours {\n#include "abi.h"\n}\n' + "\n".join(checks)
    )
    compiled(tmp_path, f"-I{headers()}", str(program))


@pytest.mark.parametrize("library", ["cudart", "cuda"])
def test_prototypes(library: str, tmp_path: Path) -> None:
    # With NVIDIA's declarations in the place of ours, a definition that differs does not compile.
    real = ["-DSIMGPU_ABI_H", "-include", "cuda_runtime_api.h", "-include", "cuda.h"]
    sources = [SOURCES / f"{library}.cpp", *SOURCES.glob(f"{library}_*.cpp")]
    assert len(sources) > 1
    compiled(tmp_path, f"-I{headers()}", *real, *map(str, sources))

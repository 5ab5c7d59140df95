"""The parts of the simulated device that need neither a compiler nor a CUDA build of torch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from memprof.simulated_cuda import environment as environment_module
from memprof.simulated_cuda.build import cache_folder, compiler
from memprof.simulated_cuda.elf import read_elf
from memprof.simulated_cuda.environment import simulated_environment
from memprof.simulated_cuda.errors import SimulationError
from memprof.simulated_cuda.gpus import find_gpu
from memprof.simulated_cuda.torch_build import TorchBuild, read_torch


def installed(root: Path, version: str, cuda: str | None, *, hip: str | None = None) -> Path:
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "libtorch_cuda.so").write_bytes(b"")
    (root / "version.py").write_text(
        f"from typing import Optional\n__version__ = {version!r}\n"
        f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip!r}\n"
    )
    return root


def test_torch_is_read_without_being_imported(tmp_path: Path) -> None:
    found = read_torch(installed(tmp_path / "torch", "2.11.0+cu130", "13.0"))
    assert (found.version, found.cuda, found.has_nvrtc) == ("2.11.0+cu130", "13.0", False)


@pytest.mark.parametrize(
    ("version", "cuda", "hip", "says"),
    [
        ("2.13.0+cpu", None, None, r"a CPU build.*\n.*torch==2\.13\.0 \S+\n"),
        ("2.11.0+rocm", None, "6.4", "a ROCm build"),
        ("2.9.0+cu128", "12.8", None, "CUDA 12.8.*speaks CUDA 13"),
    ],
)
def test_a_torch_that_will_not_do_says_what_to_install(
    tmp_path: Path, version: str, cuda: str | None, hip: str | None, says: str
) -> None:
    with pytest.raises(SimulationError, match=says):
        read_torch(installed(tmp_path / "torch", version, cuda, hip=hip))


def test_no_torch(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="no installed torch"):
        read_torch(tmp_path)


def test_a_cache_that_the_loader_could_not_name_is_refused() -> None:
    with pytest.raises(SimulationError, match="MEMPROF_CACHE"):
        cache_folder({"MEMPROF_CACHE": "/tmp/a b"})
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/memprof/simulated_cuda")


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match="CXX is 'nope'"):
        compiler({"CXX": "nope", "PATH": str(tmp_path)})
    with pytest.raises(SimulationError, match="apt install"):
        compiler({"PATH": str(tmp_path)})


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:4], lambda b: b[:200]])
def test_what_is_no_elf_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 4096, 0, 64, 56, 0, 64, 3, 2
    )
    broken = tmp_path / "broken.so"
    broken.write_bytes(damage(header.ljust(300, b"\0")))
    with pytest.raises(ValueError, match=r"ELF|ends before|empty"):
        read_elf(broken)


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = TorchBuild(root=tmp_path / "torch", version="2.11.0+cu130", cuda="13.0")
    built = tmp_path / "built"
    built.mkdir()
    (built / "libcuda.so.1").touch()
    monkeypatch.setattr(environment_module, "libraries", lambda torch, base: built)
    base = {
        "CUDA_VISIBLE_DEVICES": "",
        "LD_PRELOAD": "/old/libcuda.so.1:/lib/libtcmalloc.so",
        "MEMPROF_CACHE": "/cache",
        "PATH": "/bin",
        "TRITON_CACHE_DIR": "/triton",
        "SGLANG_CACHE_DIR": "/sglang",
    }
    result = simulated_environment(
        find_gpu("a100-40gb"), devices=2, torch=torch, base=base, values=True
    )
    assert result["LD_PRELOAD"] == f"{built / 'libcuda.so.1'}:/lib/libtcmalloc.so"
    assert result["PATH"] == f"{built}:/bin"  # where nvidia-smi is
    assert "CUDA_VISIBLE_DEVICES" not in result
    assert result["SIMGPU_MEM_BYTES"] == "42298834944"
    assert (result["SIMGPU_CC"], result["SIMGPU_DEVICES"]) == ("80", "2")
    assert result["TRITON_CACHE_DIR"] == "/triton/simulated/2.11.0-cu130-sm80-values-lines"
    assert result["SGLANG_CACHE_DIR"] == "/sglang/simulated/2.11.0-cu130-sm80-values-lines"
    for name in ("TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT"):
        assert result[name].startswith("/cache/memprof/simulated_cuda/compiled/")
    assert result["PYTHONPATH"].endswith("simulated_cuda/runtime")
    assert base["CUDA_VISIBLE_DEVICES"] == ""
    for devices in (0, 33):
        with pytest.raises(ValueError, match="1 to 32"):
            simulated_environment(find_gpu(), devices=devices, torch=torch, base=base)
